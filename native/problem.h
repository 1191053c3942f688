// One attention as plain numbers, pointers and strides: all that kernels know of Python and torch.
//
// The letters are those of DESIGN.md: N batch, Hq query heads, Hk key heads, Tq queries, Tk keys,
// D size of a key, Dv of a value.
#pragma once
#include <cstdint>

#include "blocks.h"

namespace eyeline {

// How many units hold n.
inline int64_t up(int64_t n, int64_t unit) { return (n + unit - 1) / unit; }

// How numbers lie in memory. Inside everything is float.
enum class Number : int { float32 = 0, bfloat16 = 1, float16 = 2 };

// A tensor of up to four dimensions. Strides count elements; what broadcasts has stride 0.
struct View {
  char* data = nullptr;
  int64_t stride[4] = {0, 0, 0, 0};

  explicit operator bool() const { return data != nullptr; }

  template <class T>
  T* at(int64_t a, int64_t b = 0, int64_t c = 0, int64_t d = 0) const {
    return reinterpret_cast<T*>(data) + a * stride[0] + b * stride[1] + c * stride[2] +
           d * stride[3];
  }
};

// Who may see whom: a key is visible to a query iff every part that is there says so.
struct Visible {
  View starts, stops;    // int64 [N, Hq, Tq, intervals]: sorted, disjoint, the empty ones last
  int64_t intervals = 0;
  View keep;             // bool [N, Hq, Tk]
  View q_ids, k_ids;     // int64 [N, Hq, Tq] and [N, Hq, Tk]: equal ids see each other
  View dense;            // bool [N, Hq, Tq, Tk]

  bool everything() const { return !starts && !keep && !q_ids && !dense; }
};

// Rows of a key head that are few: a pass may share out their keys, and add up the parts.
constexpr int64_t FEW_ROWS = 48;

struct Dropout {
  bool here = false;
  uint64_t seed = 0;
  uint64_t threshold = 0;  // of 2^24: a weight whose 24 random bits are below it is left out
  float scale = 1.0f;      // of the weights that stay
};

struct Problem {
  int64_t N = 0, Hq = 0, Hk = 0, Tq = 0, Tk = 0, D = 0, Dv = 0;
  Number number = Number::float32;
  View q, k, v;               // [N, Hq, Tq, D], [N, Hk, Tk, D], [N, Hk, Tk, Dv] of `number`
  View out;                   // [N, Hq, Tq, Dv] of `number`
  float* lse = nullptr;       // [N, Hq, Tq], contiguous, as are m and l
  float* m = nullptr;         // e^(score - m) / l is a weight; m is the largest score (or the sink)
  float* l = nullptr;         // but for its rounding, which l makes up for
  float scale = 1.0f;
  float softcap = 0.0f;       // 0: none
  View bias;                  // float [N, Hq, Tq, Tk]
  View relative;              // float [N, Hq, n], at j - position(i) + origin
  int64_t origin = 0;
  int64_t first_position = 0, position_step = 1;
  const int64_t* positions = nullptr;  // [Tq], where the two numbers above do not say it
  View sinks;                 // float [N, Hq]
  Visible visible;
  Dropout dropout;
  Blocks blocks;   // of the forward pass and of readings
  Blocks backward;

  int64_t group() const { return Hk ? Hq / Hk : 1; }

  int64_t position(int64_t i) const {
    return positions ? positions[i] : first_position + i * position_step;
  }
};

// What arrives at a problem's results, and where the gradients of its inputs go. What is null is not
// there, or not wanted. All but dout is contiguous.
struct Slopes {
  View dout;                    // [N, Hq, Tq, Dv] of the problem's `number`
  const float* dlse = nullptr;  // [N, Hq, Tq]
  float* dq = nullptr;          // [N, Hq, Tq, D]
  float* dk = nullptr;          // [N, Hk, Tk, D]
  float* dv = nullptr;          // [N, Hk, Tk, Dv]
  float* inner = nullptr;       // [N, Hq, Tq]: Σ P ∘ G of each row, less dlse
};

// Rows of one key head. Row r is query r / group of the head's query head r % group: heads that
// share keys stand side by side, and rows near each other see much the same keys.
struct Part {
  int64_t n, head, start, stop;
  int64_t key_start, key_stop;  // of its keys these; key_start is a multiple of a block
  float* partial;               // [rows, Dv + 2] where other parts have the other keys, else null
};

// Rows of one key head, and some of its keys.
struct Cell {
  int64_t n, head, row_start, row_stop, key_start, key_stop;
};

// Looked at between tiles, so that Ctrl-C answers at once.
struct Watch {
  void (*poll)(void* self) = nullptr;  // in the calling thread only: raises `stopped` if asked to
  void* self = nullptr;
  int* stopped = nullptr;

  // Part of whoever calls it: a kernel object must not lend a copy to another (kernels/table.cpp).
  [[gnu::always_inline]] bool stop() const {
    if (poll) poll(self);
    return stopped && __atomic_load_n(stopped, __ATOMIC_RELAXED);
  }
};

}  // namespace eyeline
