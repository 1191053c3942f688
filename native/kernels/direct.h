// Few rows: keys and values are read where they lie. Packing them would cost more than it saves.
#pragma once
#include "mask.h"
#include "number.h"
#include "pack.h"

namespace {

constexpr int DIRECT_ROWS = 2 * R;  // of a key head, at most, whose scores are sums of lanes
constexpr int AHEAD = 32;           // keys that are asked for before their turn
constexpr int CLOSE = 64;           // keys whose values stay in the first cache for all their rows

// Adds up q [rows, width] · some keys, lane by lane: sums [rows, keys], `apart` from row to row.
//
// Many keys are on their way at once, out of order, and the processor does not see that they follow
// one another: they are asked for ahead, into the second cache, since the first one's few places
// for what is missing are taken by the keys whose turn it is.
template <class T, int rows, int keys, int apart>
inline void direct_products(const T* const* key, int64_t step, int64_t D, const float* q,
                            int64_t width, F* sums) {
  F total[rows][keys] = {}, x[keys];
  const auto add = [&](int64_t d) {
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) {
      const F y = load(q + r * width + d);
#pragma GCC unroll 4
      for (int i = 0; i < keys; ++i) total[r][i] += x[i] * y;
    }
  };
  int64_t d = 0;
  for (; d + W <= D; d += W) {
#pragma GCC unroll 4
    for (int i = 0; i < keys; ++i) {
      x[i] = T::vector(key[i] + d);
      __builtin_prefetch(key[i] + d + AHEAD * step, 0, 2);
    }
    add(d);
  }
  if (d < D) {
    for (int i = 0; i < keys; ++i) x[i] = beginning(key[i] + d, D - d);
    add(d);
  }
#pragma GCC unroll 4
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
    for (int i = 0; i < keys; ++i) sums[r * apart + i] = total[r][i];
}

// The scores of 1, 2 or 4 rows, in tiles of W / rows keys.
template <class T, int rows>
void direct_tiles(const T* k, int64_t step, int64_t D, int lo, int hi, const float* q,
                  int64_t width, float* s) {
  // One row reads key by key; several share a key's numbers in registers.
  constexpr int keys = W / rows, some = rows == 1 ? 1 : keys < 4 ? keys : 4;
  for (int j = lo / keys * keys; j < hi; j += keys) {
    const T* key[keys];
    for (int i = 0; i < keys; ++i) key[i] = k + smaller(j + i, hi - 1) * step;
    F sums[W];
    for (int i = 0; i < keys; i += some)
      direct_products<T, rows, some, keys>(key + i, step, D, q, width, sums + i);
    float totals[W];
    store(totals, sums_of(sums));
    for (int r = 0; r < rows; ++r)
      std::memcpy(s + r * KEYS + j, totals + r * keys, keys * sizeof(float));
  }
}

// s [rows, KEYS] = q [rows, width] · k of the keys lo <= j < hi of a block. Both have room for as many
// rows as make up a multiple of 4, or 1 or 2 more; entries of q beyond D are 0. What lies beside
// these keys, up to whole tiles, is written too.
template <class T, int rows>
void direct_scores(const T* k, int64_t step, int64_t D, int lo, int hi, const float* q,
                   int64_t width, float* s) {
  constexpr int whole = (rows + 1) / 4 * 4;
  for (int r = 0; r < whole; r += 4)
    direct_tiles<T, 4>(k, step, D, lo, hi, q + r * width, width, s + r * KEYS);
  if constexpr (rows > whole)
    direct_tiles<T, rows - whole>(k, step, D, lo, hi, q + whole * width, width, s + whole * KEYS);
}

// The values of the keys lo <= j < hi of a block, [keys, Dv], and their weights [rows, KEYS].
template <class T>
struct Weighed {
  const T* v;
  int64_t step, Dv;
  int lo, hi;
  const float* weights;
  int turn, turns;  // of the values CLOSE keys on, vectors turn, turn + turns.. are asked for here
};

// out [rows, width] += weights · values, V vectors of columns from d, each as `read` reads it;
// false, and nothing is written, where `check` is asked for and a sum is not finite.
template <class T, int rows, int V, class Read>
bool direct_columns(const Weighed<T>& a, int64_t d, float* out, int64_t width, bool check,
                    const Read& read) {
  constexpr int keys = rows * V <= 8 ? 2 : 1;  // at once: enough sums to hide an addition's latency
  // One row alone is done sooner than they come.
  unsigned asked = 0;
  for (int c = a.turn; c < V && rows > 1; c += a.turns) asked |= 1u << c;
  F sums[keys][rows][V];
#pragma GCC unroll 48
  for (int i = 0; i < keys * rows * V; ++i) sums[i / (rows * V)][i / V % rows][i % V] = F{};
  const auto add = [&](F(&to)[rows][V], int j) {
    const T* value = a.v + j * a.step + d;
    F x[V];
#pragma GCC unroll 8
    for (int c = 0; c < V; ++c) x[c] = read(value + c * W);
#pragma GCC unroll 6
    for (int r = 0; r < rows; ++r) {
      const F w = splat(a.weights[r * KEYS + j]);
#pragma GCC unroll 8
      for (int c = 0; c < V; ++c) to[r][c] += w * x[c];
    }
#pragma GCC unroll 8
    for (int c = 0; c < V; ++c)
      if (asked >> c & 1) __builtin_prefetch(value + CLOSE * a.step + c * W, 0, 2);
  };
  int j = a.lo;
  for (; j + keys <= a.hi; j += keys)
#pragma GCC unroll 2
    for (int i = 0; i < keys; ++i) add(sums[i], j + i);
  for (; j < a.hi; ++j) add(sums[0], j);
  F bad[V]{};
#pragma GCC unroll 6
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < V; ++c) {
      if constexpr (keys == 2) sums[0][r][c] += sums[1][r][c];
      bad[c] += sums[0][r][c] * 0.0f;
    }
#pragma GCC unroll 8
  for (int c = 1; c < V; ++c) bad[0] += bad[c];
  if (check && sum(bad[0]) != 0.0f) return false;
#pragma GCC unroll 6
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < V; ++c) {
      float* to = out + r * width + d + c * W;
      store(to, load(to) + sums[0][r][c]);
    }
  return true;
}

// The same with 0 in the place of values that are not finite; false where a sum was not finite.
template <class T, int rows, int V, class Read>
bool direct_finite(const Weighed<T>& a, int64_t d, float* out, int64_t width, const Read& read) {
  if (direct_columns<T, rows, V>(a, d, out, width, true, read)) return true;
  direct_columns<T, rows, V>(a, d, out, width, false, [&](const T* p) {
    const F x = read(p);
    return x - x == 0.0f ? x : F{};
  });
  return false;
}

// The columns from d on, V vectors at once while so many are left.
template <class T, int rows, int V>
bool direct_from(const Weighed<T>& a, int64_t d, float* out, int64_t width) {
  bool finite = true;
  const auto whole = [](const T* p) { return T::vector(p); };
  for (; d + V * W <= a.Dv; d += V * W)
    finite &= direct_finite<T, rows, V>(a, d, out, width, whole);
  if constexpr (V > 1) return direct_from<T, rows, V / 2>(a, d, out, width) && finite;
  const auto last = [&](const T* p) { return beginning(p, a.Dv - d); };
  return (d == a.Dv || direct_finite<T, rows, 1>(a, d, out, width, last)) && finite;
}

// out [rows, width] += weights · values, where values that are not finite count as 0; false where
// a sum was not finite.
template <class T, int rows>
bool direct_values(const Weighed<T>& a, float* out, int64_t width) {
  constexpr int V = rows == 1 ? 8 : rows == 2 || W == 16 ? 4 : 2;  // as the registers have room for
  return direct_from<T, rows, V>(a, 0, out, width);
}

}  // namespace
