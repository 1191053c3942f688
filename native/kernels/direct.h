// Few rows: keys and values are read where they lie. Packing them would cost more than it saves.
#pragma once
#include "mask.h"
#include "number.h"
#include "pack.h"

namespace {

constexpr int DIRECT_ROWS = 2 * R;  // of a key head, at most, whose scores are sums of lanes
constexpr int RUNS = 4;             // of keys, read in turn: memory gives four at half as much again
constexpr int AHEAD = 8;            // keys of a run that are asked for before their turn
constexpr int CLOSE = 16;           // of each run: values that stay near for all rows

// Adds up q [rows, width] · some keys, lane by lane: sums [rows, keys], `apart` and `next` from each
// other.
//
// Many keys are on their way at once, out of order, and the processor does not see that they follow
// one another: they are asked for ahead, into the second cache, since the first one's few places
// for what is missing are taken by the keys whose turn it is.
template <class T, int rows, int keys, int apart, int next>
inline void direct_products(const T* const (&key)[keys], int64_t step, int64_t D, const float* q,
                            int64_t width, F* sums) {
  F total[rows][keys] = {};
  const auto add = [&](int64_t d, const F(&x)[keys]) __attribute__((always_inline)) {
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) {
      const F y = load(q + r * width + d);
#pragma GCC unroll 4
      for (int i = 0; i < keys; ++i) total[r][i] += x[i] * y;
    }
  };
  int64_t d = 0;
  for (; d + W <= D; d += W) {
    F x[keys];
#pragma GCC unroll 4
    for (int i = 0; i < keys; ++i) {
      x[i] = T::vector(key[i] + d);
      __builtin_prefetch(key[i] + d + AHEAD * step, 0, 2);
    }
    add(d, x);
  }
  if (d < D) {
    F x[keys];
    for (int i = 0; i < keys; ++i) x[i] = beginning(key[i] + d, D - d);
    add(d, x);
  }
#pragma GCC unroll 4
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
    for (int i = 0; i < keys; ++i) sums[r * apart + i * next] = total[r][i];
}

// The scores of 1, 2 or 4 rows, W at once. The keys are RUNS runs, of each of which some come in turn,
// of as many runs at once as make up W scores.
template <class T, int rows>
void direct_tiles(const T* k, int64_t step, int64_t D, int lo, int hi, const float* q,
                  int64_t width, float* s) {
  constexpr int keys = W / rows, some = keys < 4 ? keys : 4, runs = keys / some;
  const int begin = lo / some * some;
  const int length = static_cast<int>(eyeline::up(hi - begin, some * RUNS)) * some;
  const int64_t hop = length * step;
  const T* const last = k + (hi - 1) * step;
  for (int n = 0; n < length; n += some)
    for (int run = 0; run < RUNS; run += runs) {
      const int j = begin + run * length + n;
      if (j >= hi) break;
      const T* const first = k + j * step;
      const auto at = [&](int a, int i) {
        const T* key = first + a * hop + i * step;
        return key < last ? key : last;
      };
      F sums[W];
      // One row takes a key of each run at once; several share a key's numbers in registers.
      if constexpr (rows == 1) {
#pragma GCC unroll 4
        for (int i = 0; i < some; ++i) {
          const T* key[runs];
          for (int a = 0; a < runs; ++a) key[a] = at(a, i);
          direct_products<T, rows, runs, keys, some>(key, step, D, q, width, sums + i);
        }
      } else {
#pragma GCC unroll 4
        for (int a = 0; a < runs; ++a) {
          const T* key[some];
          for (int i = 0; i < some; ++i) key[i] = at(a, i);
          direct_products<T, rows, some, keys, 1>(key, step, D, q, width, sums + a * some);
        }
      }
      float totals[W];
      store(totals, sums_of(sums));
      for (int r = 0; r < rows; ++r)
        for (int a = 0; a < runs && j + a * length < hi; ++a)
          std::memcpy(s + r * KEYS + j + a * length, totals + r * keys + a * some,
                      some * sizeof(float));
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

// Values of a block's keys, [keys, Dv], and their weights [rows, KEYS]: of each run some.
template <class T>
struct Weighed {
  const T* v;
  int64_t step, Dv;
  const float* weights;
  int turn, turns;  // of the values CLOSE keys on, those of run turn, turn + turns.. are asked for
  int start[RUNS], stop[RUNS];

  // Of the keys from..from + CLOSE of each run those with lo <= j < hi; false where there is none.
  bool take(int from, int length, int lo, int hi) {
    bool any = false;
    for (int run = 0; run < RUNS; ++run) {
      const int first = run * length + from;
      start[run] = static_cast<int>(larger(lo, first));
      stop[run] = static_cast<int>(smaller(hi, first + CLOSE));
      any |= start[run] < stop[run];
    }
    return any;
  }

  bool whole() const {
    for (int run = 0; run < RUNS; ++run)
      if (stop[run] - start[run] != CLOSE) return false;
    return true;
  }
};

// out [rows, width] += weights · values, V vectors of columns from d, each as `read` reads it;
// false, and nothing is written, where `check` is asked for and a sum is not finite.
template <class T, int rows, int V, class Read>
bool direct_columns(const Weighed<T>& a, int64_t d, float* out, int64_t width, bool check,
                    const Read& read) {
  // At once: enough sums to hide an addition's latency.
  constexpr int keys = rows * V <= 4 ? 4 : rows * V <= 8 ? 2 : 1;
  unsigned asked = 0;
  for (int run = a.turn; run < RUNS; run += a.turns) asked |= 1u << run;
  F sums[keys][rows][V];
#pragma GCC unroll 48
  for (int i = 0; i < keys * rows * V; ++i) sums[i / (rows * V)][i / V % rows][i % V] = F{};
  const auto add = [&](int run, int j, const T* value) __attribute__((always_inline)) {
    F(&to)[rows][V] = sums[run % keys];
    F x[V];
#pragma GCC unroll 8
    for (int c = 0; c < V; ++c) x[c] = read(value + c * W);
#pragma GCC unroll 6
    for (int r = 0; r < rows; ++r) {
      const F w = splat(a.weights[r * KEYS + j]);
#pragma GCC unroll 8
      for (int c = 0; c < V; ++c) to[r][c] += w * x[c];
    }
    if (asked >> run & 1)
#pragma GCC unroll 8
      for (int c = 0; c < V; ++c) __builtin_prefetch(value + CLOSE * a.step + c * W, 0, 2);
  };
  const T* value[RUNS];
  for (int run = 0; run < RUNS; ++run) value[run] = a.v + a.start[run] * a.step + d;
  if (a.whole())
    for (int j = 0; j < CLOSE; ++j)
#pragma GCC unroll 4
      for (int run = 0; run < RUNS; ++run) add(run, a.start[run] + j, value[run] + j * a.step);
  else
#pragma GCC unroll 4
    for (int run = 0; run < RUNS; ++run)
      for (int j = 0; j < a.stop[run] - a.start[run]; ++j)
        add(run, a.start[run] + j, value[run] + j * a.step);
  F bad[V]{};
#pragma GCC unroll 6
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < V; ++c) {
#pragma GCC unroll 4
      for (int i = 1; i < keys; ++i) sums[0][r][c] += sums[i][r][c];
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
