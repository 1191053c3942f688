// Operands laid out as the inner loop reads them, as floats; for q·k as places (number.h), `width` of
// them to a line of D.
#pragma once
#include "mask.h"
#include "number.h"
#include "product.h"

namespace {

constexpr int CACHE_LINE = 64;  // bytes that come from memory at once

// W entries of R lines: to [W, R].
inline void interleave(const F (&line)[R], float* to) {
#pragma GCC unroll 6
  for (int part = 0; part < R; ++part) {
    F made = line[0];
#pragma GCC unroll 6
    for (int r = 1; r < R; ++r) {
      I index;
      for (int j = 0; j < W; ++j) {
        const int at = part * W + j;
        index[j] = at % R == r ? W + at / R : r == 1 && at % R == 0 ? at / R : j;
      }
      made = shuffle(made, line[r], index);
    }
    store(to + part * W, made);
  }
}

// A line that is packed later is on its way meanwhile.
template <class T>
inline void ask_for(const T* line, int64_t n) {
  constexpr int64_t each = CACHE_LINE / static_cast<int64_t>(sizeof(T));
  for (int64_t d = 0; d < n; d += each) __builtin_prefetch(line + d);
}

// A strip of R queries: to [width, R], entries of missing rows 0.
template <class T>
void pack_queries(const Problem& p, int64_t n, const Row* rows, int count, float* to) {
  // Narrower vectors take more shuffles than there are entries.
  if (W == 16 && !paired<T> && p.q.stride[3] == 1 && p.D % W == 0) {
    for (int r = 0; r < count; ++r)
      ask_for(p.q.at<const T>(n, rows[r].h, rows[r].i + R), p.D);
    for (int64_t d = 0; d < p.D; d += W) {
      F line[R] = {};
      for (int r = 0; r < count; ++r)
        line[r] = T::vector(p.q.at<const T>(n, rows[r].h, rows[r].i, d));
      interleave(line, to + d * R);
    }
    return;
  }
  for (int r = 0; r < R; ++r) {
    if (r >= count) {
      for (int64_t d = 0; d < places<T>(p.D); ++d) to[d * R + r] = 0.0f;
      continue;
    }
    const T* q = p.q.at<const T>(n, rows[r].h, rows[r].i);
    pack_places(q, p.q.stride[3], p.D, R, to + r);
  }
}

// C keys: to [width, C], those beyond `count` 0.
template <class T>
void pack_keys(const Problem& p, int64_t n, int64_t head, int64_t first, int count, float* to) {
  const int64_t step = p.k.stride[3], width = places<T>(p.D);
  const T* key[C];
  for (int c = 0; c < C; ++c) key[c] = p.k.at<const T>(n, head, first + (c < count ? c : 0));
  constexpr int each = paired<T> ? 2 : 1;
  int64_t at = 0;
  if (step == 1) {
    for (int c = 0; c < C; ++c) ask_for(key[c] + C * p.k.stride[2], p.D);
    for (; (at + W) * each <= p.D; at += W)
      for (int half = 0; half < C; half += W) {
        F square[W];
        for (int c = 0; c < W; ++c)
          square[c] = half + c < count ? load_places(key[half + c] + at * each) : F{};
        transpose(square);
        for (int c = 0; c < W; ++c) store(to + (at + c) * C + half, square[c]);
      }
  }
  for (int c = 0; c < count; ++c)
    pack_places(key[c] + at * each * step, step, p.D - at * each, C, to + at * C + c);
  for (; at < width; ++at)
    for (int c = count; c < C; ++c) to[at * C + c] = 0.0f;
}

// n numbers to panels of C: the first C at `to`, the next `panel` further on; beyond them 0. Entries
// that are not finite become 0, and then false comes back.
template <class T>
bool pack_line(const T* from, int64_t step, int64_t n, int64_t panel, float* to) {
  F bad{};
  for (int64_t d = 0; d < n; d += C) {
    float* line = to + d / C * panel;
    const int64_t width = smaller(n - d, C);
    if (width < C || step != 1) {
      read_line(from + d * step, step, width, line);
      for (int64_t c = width; c < C; ++c) line[c] = 0.0f;
    } else {
      store(line, T::vector(from + d));
      store(line + W, T::vector(from + d + W));
    }
    bad += load(line) * 0.0f + load(line + W) * 0.0f;
  }
  if (sum(bad) == 0.0f) return true;
  for (int64_t d = 0; d < n; ++d) {
    float& x = to[d / C * panel + d % C];
    x = finite(x) ? x : 0.0f;
  }
  return false;
}

// Values with an entry that is not finite. They are packed with 0 in its place, so that they reach
// no row that does not see them; who sees them hears of it afterwards.
struct Odd {
  int count = 0;
  int key[KEYS];
};

// Values of keys lo <= j < hi of a block: to [Dv / C, keys, C].
template <class T>
void pack_values(const Problem& p, int64_t n, int64_t head, int64_t first, int lo, int hi,
                 int keys, float* to, Odd& odd) {
  odd.count = 0;
  for (int j = lo; j < hi; ++j) {
    const T* v = p.v.at<const T>(n, head, first + j);
    ask_for(v + 16 * p.v.stride[2], p.Dv);
    if (!pack_line(v, p.v.stride[3], p.Dv, C * keys, to + j * C)) odd.key[odd.count++] = j;
  }
}

}  // namespace
