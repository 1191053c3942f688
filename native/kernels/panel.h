// Some more rows: their queries lie in panels, W rows side by side, and a key's numbers are read one by
// one, each for all rows of a panel. Keys need not be transposed, which for so few rows would cost as
// much as their product.
#pragma once
#include "mask.h"
#include "number.h"
#include "pack.h"

namespace {

constexpr int PANEL_ROWS = 16 * R;  // of a key head, at most

// A panel of `count` queries: to [places, W], entries of missing rows 0.
template <class T>
void pack_panel(const Problem& p, int64_t n, const Row* rows, int64_t count, float* to) {
  std::memset(to, 0, static_cast<size_t>(places<T>(p.D) * W * 4));
  for (int64_t r = 0; r < count; ++r)
    pack_places(p.q.at<const T>(n, rows[r].h, rows[r].i), p.q.stride[3], p.D, W, to + r);
}

// A key as places side by side.
template <class T>
inline void lay_key(const T* key, int64_t D, float* to) {
  constexpr int each = W * (paired<T> ? 2 : 1);
  int64_t d = 0;
  for (; d + each <= D; d += each, to += W) store(to, load_places(key + d));
  pack_places(key + d, 1, D - d, 1, to);
}

// sums [keys, W] = W keys, `step` apart, times the rows of a panel. Of the keys that come next, the
// lines number turn, turn + turns.. are asked for on the way.
template <bool pairs>
inline void panel_products(const float* keys, int64_t step, int64_t width, const float* q,
                           const char* next, int64_t next_step, int turn, int turns,
                           F (&sums)[W]) {
  constexpr int line = CACHE_LINE / sizeof(float), each = line / W;
#pragma GCC unroll 16
  for (int i = 0; i < W; ++i) sums[i] = F{};
  const float* group[4];
  for (int g = 0; g < 4; ++g) group[g] = keys + g * (W / 4) * step;
  const auto add = [&](int64_t d) {
    const F x = load(q + d * W);
#pragma GCC unroll 16
    for (int i = 0; i < W; ++i) {
      const F key = splat(group[i / (W / 4)][i % (W / 4) * step + d]);
      sums[i] = pairs ? add_pairs(sums[i], key, x) : sums[i] + key * x;
    }
  };
  int64_t d = 0;
  for (int at = 0; d + line <= width; ++at) {
    if (at % turns == turn)
      for (int i = 0; i < W; ++i) {
        __builtin_prefetch(next + i * next_step + at * CACHE_LINE);
        for (int e = 0; e < each; ++e) add(d++);
      }
    else
      for (int e = 0; e < line; ++e) add(d++);
  }
  for (; d < width; ++d) add(d);
}

// Whether keys that are so many bytes apart crowd in few sets of the first cache.
inline bool crowded(int64_t bytes) { return bytes % 2048 == 0; }

// s [rows, KEYS] = q · k of the keys lo <= j < hi of a block, whose rows' queries are in panels. What
// lies beside these keys, up to whole tiles, is written too. `laid` has room for W keys.
template <class T>
void panel_scores(const T* k, int64_t step, int64_t D, int lo, int hi, const float* q, int rows,
                  float* laid, float* s) {
  const int64_t width = places<T>(D);
  const bool lies = std::is_same_v<T, Float32> && !crowded(step * 4);
  const int panels = (rows + W - 1) / W;
  for (int j = lo / W * W; j < hi; j += W) {
    const T* here = k + j * step;
    const float* keys = reinterpret_cast<const float*>(here);
    int64_t apart = step;
    if (!lies || hi - j < W) {
      for (int i = 0; i < W; ++i) lay_key(here + smaller(i, hi - 1 - j) * step, D, laid + i * width);
      keys = laid;
      apart = width;
    }
    for (int a = 0; a < panels; ++a) {
      F sums[W];
      panel_products<paired<T>>(keys, apart, width, q + a * width * W,
                                reinterpret_cast<const char*>(here + W * step),
                                step * static_cast<int64_t>(sizeof(T)), a, panels, sums);
      transpose(sums);
#pragma GCC unroll 16
      for (int r = 0; r < W; ++r)
        if (a * W + r < rows) store(s + (a * W + r) * KEYS + j, sums[r]);
    }
  }
}

}  // namespace
