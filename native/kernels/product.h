// The one inner loop: a tile of a matrix product in registers.
#pragma once
#include <type_traits>

#include "../blocks.h"
#include "simd.h"

namespace {

// Rows of a tile: 6 × 2 sums, 2 of b and 1 of a are 15 of 16 registers.
constexpr int R = eyeline::STRIP_ROWS;
constexpr int C = 2 * W;  // its columns

// c [rows, V · W] += a [rows, n] · b [n, C], of which so many columns. Row r of a begins at
// a + r · row, its entries are `step` apart; both are known to the compiler. An entry is a float, or
// a pair of bfloat16 in its place.
template <int rows, int row, int step, bool pairs = false, int V>
inline void add_product(int64_t n, const float* a, const float* b, F (&c)[rows][V]) {
  for (int64_t i = 0; i < n; ++i, a += step, b += C) {
    F y[V];
#pragma GCC unroll 2
    for (int at = 0; at < V; ++at) y[at] = load(b + at * W);
#pragma GCC unroll 6
    for (int r = 0; r < rows; ++r) {
      const F x = splat(a[r * row]);
#pragma GCC unroll 2
      for (int at = 0; at < V; ++at)
        c[r][at] = pairs ? add_pairs(c[r][at], x, y[at]) : c[r][at] + x * y[at];
    }
  }
}

// Tiles between memory, where lines are `line` apart, and registers. Unrolled: an array that a loop
// runs over is kept in memory.
template <int rows>
inline void load_tile(const float* from, int64_t line, F (&c)[rows][2]) {
#pragma GCC unroll 6
  for (int r = 0; r < rows; ++r) {
    c[r][0] = load(from + r * line);
    c[r][1] = load(from + r * line + W);
  }
}

template <int rows, int V>
inline void store_tile(float* to, int64_t line, const F (&c)[rows][V]) {
#pragma GCC unroll 6
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 2
    for (int at = 0; at < V; ++at) store(to + r * line + at * W, c[r][at]);
}

template <int rows>
inline void add_tile(float* to, int64_t line, const F (&c)[rows][2]) {
#pragma GCC unroll 6
  for (int r = 0; r < rows; ++r) {
    store(to + r * line, load(to + r * line) + c[r][0]);
    store(to + r * line + W, load(to + r * line + W) + c[r][1]);
  }
}

// c [R, V · W] = a [R, n] · b [n, C], packed (pack.h).
template <bool pairs, int V>
inline void multiply_packed(int64_t n, const float* a, const float* b, float* c, int64_t line) {
  F sums[R][V];
  for (int r = 0; r < R; ++r)
    for (int at = 0; at < V; ++at) sums[r][at] = F{};
  add_product<R, 1, R, pairs>(n, a, b, sums);
  store_tile(c, line, sums);
}

// The vectors of c [R, C] with one of the columns lo <= j < hi.
template <bool pairs>
inline void multiply_tile(int64_t n, const float* a, const float* b, int lo, int hi, float* c,
                          int64_t line) {
  if (lo >= W) return multiply_packed<pairs, 1>(n, a, b + W, c + W, line);
  if (hi <= W) return multiply_packed<pairs, 1>(n, a, b, c, line);
  multiply_packed<pairs, 2>(n, a, b, c, line);
}

// Calls `f` with the number of rows, 1 to R, as a constant.
template <class Call>
inline void with_rows(int rows, const Call& f) {
  switch (rows) {
    case 1: return f(std::integral_constant<int, 1>{});
    case 2: return f(std::integral_constant<int, 2>{});
    case 3: return f(std::integral_constant<int, 3>{});
    case 4: return f(std::integral_constant<int, 4>{});
    case 5: return f(std::integral_constant<int, 5>{});
    default: return f(std::integral_constant<int, R>{});
  }
}

}  // namespace
