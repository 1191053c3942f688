// Few rows: keys and values are read where they lie. Packing them would cost more than it saves.
#pragma once
#include "mask.h"
#include "number.h"
#include "pack.h"

namespace {

constexpr int DIRECT_ROWS = 2 * R;  // of a key head, at most
constexpr int AHEAD = 8;            // keys that are fetched before their turn

// s [rows, KEYS] = q [rows, D] · k of the keys lo <= j < hi of a block.
template <class T, int rows>
void direct_scores(const Problem& p, int64_t n, int64_t head, int64_t first, int lo, int hi,
                   const float* q, float* s) {
  const int64_t D = p.D, whole = D / W * W;
  for (int j = lo; j < hi; ++j) {
    const T* k = p.k.at<const T>(n, head, first + j);
    __builtin_prefetch(k + AHEAD * p.k.stride[2]);
    F sums[rows] = {};
    for (int64_t d = 0; d < whole; d += W) {
      const F x = T::vector(k + d);
#pragma GCC unroll 6
      for (int r = 0; r < rows; ++r) sums[r] += x * load(q + r * D + d);
    }
#pragma GCC unroll 6
    for (int r = 0; r < rows; ++r) {
      float total = sum(sums[r]);
      for (int64_t d = whole; d < D; ++d) total += T::read(k[d]) * q[r * D + d];
      s[r * KEYS + j] = total;
    }
  }
}

// out [rows, V · W] = out · decay + weights [rows, KEYS] · values; false, and nothing is written,
// where a value is not finite.
template <class T, int rows, int V>
bool direct_columns(const T* v, int64_t step, int lo, int hi, const float* weights,
                    const float* decay, float* out, int64_t width) {
  F sums[rows][V], bad{};
#pragma GCC unroll 6
  for (int r = 0; r < rows; ++r)
    for (int c = 0; c < V; ++c) sums[r][c] = load(out + r * width + c * W) * decay[r];
  for (int j = lo; j < hi; ++j) {
    const T* value = v + j * step;
    __builtin_prefetch(value + AHEAD * step);
    F x[V];
    for (int c = 0; c < V; ++c) {
      x[c] = T::vector(value + c * W);
      bad += x[c] * 0.0f;
    }
#pragma GCC unroll 6
    for (int r = 0; r < rows; ++r) {
      const F w = splat(weights[r * KEYS + j]);
      for (int c = 0; c < V; ++c) sums[r][c] += w * x[c];
    }
  }
  if (sum(bad) != 0.0f) return false;
#pragma GCC unroll 6
  for (int r = 0; r < rows; ++r)
    for (int c = 0; c < V; ++c) store(out + r * width + c * W, sums[r][c]);
  return true;
}

// The columns of out that whole vectors hold, up to a value that is not finite; returns the first
// column that is left.
template <class T, int rows>
int64_t direct_values(const T* v, int64_t step, int64_t Dv, int lo, int hi, const float* weights,
                      const float* decay, float* out, int64_t width) {
  // One row alone has too few sums to hide an addition's latency behind.
  constexpr int V = rows <= 2 ? 4 : 2;
  int64_t d = 0;
  for (; d + V * W <= Dv; d += V * W)
    if (!direct_columns<T, rows, V>(v + d, step, lo, hi, weights, decay, out + d, width)) return d;
  for (; d + W <= Dv; d += W)
    if (!direct_columns<T, rows, 1>(v + d, step, lo, hi, weights, decay, out + d, width)) return d;
  return d;
}

// One column of one row, step by step as above; a value that is not finite reaches only who sees it.
template <class T>
float direct_column(const Problem& p, int64_t n, int64_t head, Row row, int64_t first, int lo,
                    int hi, int64_t d, const float* weights, float total) {
  for (int j = lo; j < hi; ++j) {
    const float x = T::read(*p.v.at<const T>(n, head, first + j, d));
    if (finite(x) || sees(p, n, row, first + j)) total += weights[j] * x;
  }
  return total;
}

}  // namespace
