// Attentions of all kinds, drawn at random, with the memory that their tensors lie in.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "../problem.h"

namespace eyeline {

// splitmix64: the same numbers everywhere.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t bits();
  double uniform();  // 0 <= x < 1
  double normal();
  bool chance(double p) { return uniform() < p; }
  int64_t below(int64_t n) { return static_cast<int64_t>(uniform() * static_cast<double>(n)); }

  template <class T, size_t n>
  T one_of(const T (&values)[n]) {
    return values[below(n)];
  }

 private:
  uint64_t state_;
};

using Sizes = std::vector<int64_t>;

// How a tensor lies in memory.
struct Layout {
  const char* order = "abcd";  // its dimensions, the outermost first
  int64_t gap = 0;             // entries behind each innermost line, which nobody may read
  bool shared[4] = {};         // dimensions along which one entry serves all
};

// A problem that owns its tensors. Each lies in a piece of memory of its own, as small as can be.
class Drawn {
 public:
  // Number `seed` of an endless list, in which every type, size, mask, layout and option comes up.
  explicit Drawn(uint64_t seed);

  Problem problem;
  std::string words;  // what it is, for whoever reads of a failure

  // A result that was not written yet: NaN.
  View result(const Sizes& sizes, int64_t bytes) { return memory(sizes, bytes, {}); }

  // Normal numbers of the problem's type, in any layout.
  View operand(const Sizes& sizes, double deviation = 1.0);

  Random& random() { return random_; }

 private:
  void draw_sizes();
  void draw_operands();
  void draw_options();
  void draw_positions();
  void draw_mask();
  void draw_intervals(const Layout& layout);
  void spoil();

  Layout mask_layout();
  View memory(const Sizes& sizes, int64_t bytes, const Layout& layout);

  Random random_;
  bool sharp_ = false;  // scores of hundreds
  std::vector<std::unique_ptr<char[]>> held_;
};

}  // namespace eyeline
