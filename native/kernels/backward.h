// Gradients of attention at q, k and v. The weights are computed again from each row's state; then,
// tile by tile, with G = dout vᵀ and dS = P ∘ (G - inner):
//     dv += Pᵀ dout,   dk += scale · dSᵀ q,   dq += scale · dS k.
// Dropout's mask lies on G, and on the weights that dv sums up.
#pragma once
#include "forward.h"

namespace {

using eyeline::Cell;
using eyeline::Slopes;

// Rows with an entry that is not finite, as `Odd` has keys.
struct OddRows {
  int count = 0;
  int* row;
};

// dout vᵀ has the form of q kᵀ, and k is to dS what v is to the weights: one packing for both.
inline Problem exchanged(const Problem& p, const Slopes& slopes) {
  Problem made = p;
  made.q = slopes.dout, made.k = p.v, made.v = p.k;
  made.D = p.Dv, made.Dv = p.D;
  return made;
}

// Σ a · b over n numbers. Where b is 0 a does not matter: rows that see nothing have an out of 0, and
// what arrives at them may be NaN.
template <class T>
float dot(const T* a, int64_t step_a, const T* b, int64_t step_b, int64_t n) {
  F sums{};
  int64_t i = 0;
  if (step_a == 1 && step_b == 1)
    for (; i + W <= n; i += W) {
      const F y = T::vector(b + i);
      sums += y == 0.0f ? F{} : T::vector(a + i) * y;
    }
  float total = sum(sums);
  for (; i < n; ++i) {
    const float y = T::read(b[i * step_b]);
    if (y != 0.0f) total += T::read(a[i * step_a]) * y;
  }
  return total;
}

// What a row's weights and slopes follow from: P = 2^(s - m) · share, dS = P ∘ (G - inner).
struct Past {
  float m, share, inner;
};

// A cell on its way. Everything the loops touch, in one piece of memory.
struct Backward : Strips {
  // Apart in memory so that a column of lines shares no cache set.
  static constexpr int LINE = eyeline::MOST_BACKWARD_KEYS + 16;

  const Problem dual;
  const Slopes& slopes;
  const Cell& cell;
  const int keys;  // of a block
  bool plain;
  bool more;       // slopes need dropout or the slope of softcap
  float factor;    // from what is left of a score to a base-2 logit
  int64_t D, Dv;   // rounded up to whole tiles
  bool packed = false;  // whether the rows at hand are

  float* q;        // [strips, places of D, R]
  float* dout;     // [strips, places of Dv, R]
  float* q_lines;     // [D / C, rows, C]
  float* dout_lines;  // [Dv / C, rows, C]
  float* dq;       // [strips, R, D] sums so far
  float* k;        // [keys / C, places of D, C]
  float* v;        // [keys / C, places of Dv, C]
  float* k_lines;  // [D / C, keys, C]
  float* dk;       // [keys, D] sums of the chunk
  float* dv;       // [keys, Dv]
  float* weights;  // [held, R, LINE] scores, then weights
  float* pulled;   // [held, R, LINE] G, then dS
  float* cap;      // [keys] of one row: the slope of softcap
  float* kept;     // [keys] of one row: what dropout multiplies by
  Past* past;      // [rows]
  OddRows odd_q, odd_dout;  // entries that are not finite: packed as 0, added afterwards
  Odd odd_k;

  static int64_t most_rows(const Problem& p) {
    return smaller(p.backward.strips * R, round_up(p.Tq * p.group(), R));
  }

  static int64_t bytes(const Problem& p) {
    const int64_t D = round_up(p.D, C), Dv = round_up(p.Dv, C), rows = most_rows(p);
    const int64_t keys = p.backward.keys, held = smaller(rows, p.backward.held * R);
    const int64_t floats = rows * (p.D + p.Dv + D + Dv + D) +
                           keys * (p.D + p.Dv + D + D + Dv + 2) + 2 * held * LINE;
    return Strips::bytes(rows) + floats * 4 +
           rows * static_cast<int64_t>(sizeof(Past) + 2 * sizeof(int)) + 17 * 64;
  }

  Backward(const Problem& p, const Slopes& slopes, const Cell& cell, char* memory)
      : Strips(p, most_rows(p), memory),
        dual(exchanged(p, slopes)),
        slopes(slopes),
        cell(cell),
        keys(p.backward.keys) {
    plain = is_plain(p);
    more = p.softcap > 0.0f || p.dropout.here;
    factor = to_logit(p);
    D = round_up(p.D, C);
    Dv = round_up(p.Dv, C);
    const int64_t rows = most_rows(p), held = smaller(rows, p.backward.held * R);
    const auto floats = [&](int64_t n) { return take<float>(memory, n); };
    q = floats(rows * p.D), dout = floats(rows * p.Dv);
    q_lines = floats(rows * D), dout_lines = floats(rows * Dv);
    dq = floats(rows * D);
    k = floats(keys * p.D), v = floats(keys * p.Dv), k_lines = floats(keys * D);
    dk = floats(keys * D), dv = floats(keys * Dv);
    weights = floats(held * LINE), pulled = floats(held * LINE);
    cap = floats(keys), kept = floats(keys);
    past = take<Past>(memory, rows);
    odd_q.row = take<int>(memory, rows), odd_dout.row = take<int>(memory, rows);
  }

  // A chunk's rows are packed where some key is seen.
  template <class T>
  void pack() {
    packed = true;
    odd_q.count = odd_dout.count = 0;
    for (int i = 0; i < strips; ++i) {
      pack_queries<T>(p, n, row + i * R, rows_of(i), q + i * R * places<T>(p.D));
      if (slopes.dout)
        pack_queries<T>(dual, n, row + i * R, rows_of(i), dout + i * R * places<T>(p.Dv));
    }
    for (int64_t r = 0; r < strips * R; ++r) {
      if (r < count) past[r] = past_of<T>(row[r]);
      pack_row<T>(p.q, p.D, r, q_lines, odd_q);
      if (slopes.dout) pack_row<T>(slopes.dout, p.Dv, r, dout_lines, odd_dout);
    }
    std::memset(dq, 0, static_cast<size_t>(strips * R * D * 4));
  }

  template <class T>
  void pack_row(const View& of, int64_t width, int64_t r, float* lines, OddRows& odd) {
    const int64_t panel = most_rows(p) * C;
    if (r >= count) {
      for (int64_t d = 0; d < width; d += C, lines += panel)
        std::memset(lines + r * C, 0, C * 4);
      return;
    }
    const T* from = of.at<const T>(n, row[r].h, row[r].i);
    if (!pack_line(from, of.stride[3], width, panel, lines + r * C))
      odd.row[odd.count++] = static_cast<int>(r);
  }

  template <class T>
  Past past_of(Row here) const {
    const int64_t at = (n * p.Hq + here.h) * p.Tq + here.i;
    Softmax state;
    state.read(p.m[at], p.l[at]);
    // A row that sees nothing keeps its scores of -inf; one that sees +inf has no weights.
    if (state.m == infinity) state.m = __builtin_nanf("");
    if (state.m == -infinity) state.m = 0.0f, state.l = 1.0f;
    float inner = slopes.dlse ? -slopes.dlse[at] : 0.0f;
    if (slopes.dout)
      inner += dot(slopes.dout.at<const T>(n, here.h, here.i), slopes.dout.stride[3],
                   p.out.at<const T>(n, here.h, here.i), p.out.stride[3], p.Dv);
    if (slopes.inner) slopes.inner[at] = inner;
    return {state.m, 1.0f / state.l, inner};
  }

  // Whether a row of the strip sees one of the keys lo <= j < hi.
  bool meets(int strip, int lo, int hi) const {
    const Span& sp = span[strip];
    return sp.sight != Sight::none && lo < sp.hi && hi > sp.lo;
  }

  // to [R, LINE] = a [R, size] · bᵀ [size, keys] of the strips from..last.
  template <class T>
  void multiply_keys(int from, int last, const Span& any, int64_t size, const float* a,
                     const float* b, float* to) {
    const int64_t width = places<T>(size);
    for (int c = any.lo / C; c * C < any.hi; ++c)
      for (int i = from; i < last; ++i) {
        if (!meets(i, c * C, c * C + C)) continue;
        float* tile = to + (i - from) * R * LINE + c * C;
        F sums[R][2];
        for (int r = 0; r < R; ++r) sums[r][0] = sums[r][1] = F{};
        add_product<R, 1, R, paired<T>>(width, a + i * R * width, b + c * C * width, sums);
        store_tile(tile, LINE, sums);
      }
  }

  // 1 - tanh²(x), the slope of softcap at scores q·k, as 4 e / (1 + e)² with e = exp(-2 |x|): where
  // it is small, so is its error.
  void read_cap(const float* s, int lo, int hi) {
    const float factor = 2.0f * log2e * p.scale / p.softcap;
    for (int j = lo; j < hi; j += W) {
      const F x = load(s + j) * factor, e = exp2(x > 0.0f ? -x : x);
      store(cap + j, e * 4.0f / ((1.0f + e) * (1.0f + e)));
    }
  }

  static void clear(float* line, int from, int to) {
    std::memset(line + from, 0, static_cast<size_t>(to - from) * 4);
  }

  // Scores of a strip become weights and G becomes dS, both 0 at the keys of `any` that a row does
  // not see.
  void weigh(int strip, int64_t first, int width, const Span& any, float* s, float* g) {
    const Span sp = span[strip];
    const int begin = any.lo / C * C, end = static_cast<int>(round_up(any.hi, C));
    int lo = begin, hi = begin;
    if (sp.sight != Sight::none) lo = sp.lo / C * C, hi = static_cast<int>(round_up(sp.hi, C));
    if (sp.sight == Sight::some)
      look(p.visible, n, row + strip * R, rows_of(strip), first, width, seen);
    for (int r = 0; r < R; ++r, s += LINE, g += LINE) {
      const bool here = r < rows_of(strip);
      const int from = here ? lo : end, to = here ? hi : end;
      clear(s, begin, from), clear(g, begin, from);
      clear(s, to, end), clear(g, to, end);
      if (from < to) weigh_row(strip * R + r, first, width, sp, seen + r * KEYS, lo, hi, s, g);
    }
  }

  void weigh_row(int64_t at, int64_t first, int width, const Span& sp, const uint8_t* sees,
                 int lo, int hi, float* s, float* g) {
    if (p.softcap > 0.0f) read_cap(s, lo, hi);
    if (!plain) finish_scores(p, n, row[at], first, width, lo, hi, s);
    hide(p.visible, n, row[at], first, sp, sees, lo, hi, s);
    if (!slopes.dout) clear(g, lo, hi);
    if (!more) return differentiate<false>(past[at], lo, hi, s, g);
    if (!(p.softcap > 0.0f))
      for (int j = lo; j < hi; ++j) cap[j] = 1.0f;
    for (int j = lo; j < hi; ++j) kept[j] = 1.0f;
    if (p.dropout.here) drop(p, n, row[at], first, sp.lo, sp.hi, kept);
    differentiate<true>(past[at], lo, hi, s, g);
  }

  // What is hidden is selected, not multiplied by 0: it may be NaN.
  template <bool more>
  void differentiate(const Past& of, int lo, int hi, float* s, float* g) {
    for (int j = lo; j < hi; j += W) {
      const F score = load(s + j);
      F weight = exp2(score * factor - of.m) * of.share, arrived = load(g + j);
      if constexpr (more) arrived *= load(kept + j);
      F slope = weight * (arrived - of.inner);
      if constexpr (more) {
        slope *= load(cap + j);
        weight *= load(kept + j);
      }
      store(s + j, score == -infinity ? F{} : weight);
      store(g + j, score == -infinity ? F{} : slope);
    }
  }

  // to [keys, width] += wᵀ [keys, rows] · lines [rows, width], of the rows of strips from..last.
  void pull_keys(int from, int last, const Span& any, const float* w, const float* lines,
                 int64_t width, float* to) {
    const int64_t panel = most_rows(p) * C;
    for (int column = 0; column * C < width; ++column)
      for (int j = any.lo; j < any.hi; j += R) {
        const int some = any.hi - j < R ? any.hi - j : R;
        int a = from, b = last;
        while (a < b && !meets(a, j, j + some)) ++a;
        while (a < b && !meets(b - 1, j, j + some)) --b;
        if (a == b) continue;
        with_rows(some, [&](auto known) {
          constexpr int rows = decltype(known)::value;
          float* tile = to + j * width + column * C;
          F sums[rows][2];
          load_tile(tile, width, sums);
          add_product<rows, 1, LINE>((b - a) * R, w + (a - from) * R * LINE + j,
                                     lines + column * panel + a * R * C, sums);
          store_tile(tile, width, sums);
        });
      }
  }

  // dq [R, D] += dS [R, keys] · k [keys, D] of the strips from..last. A block is summed up by itself:
  // over long texts that keeps most of the roundings small.
  void pull_queries(int from, int last) {
    for (int column = 0; column * C < D; ++column)
      for (int i = from; i < last; ++i) {
        const Span sp = span[i];
        if (sp.sight == Sight::none) continue;
        float* tile = dq + i * R * D + column * C;
        F sums[R][2];
        for (int r = 0; r < R; ++r) sums[r][0] = sums[r][1] = F{};
        add_product<R, LINE, 1>(sp.hi - sp.lo, pulled + (i - from) * R * LINE + sp.lo,
                                k_lines + (column * keys + sp.lo) * C, sums);
        add_tile(tile, D, sums);
      }
  }

  // What entries of x [width] that are not finite give: to += weight · x there.
  template <class T>
  static void add_odd(const T* x, int64_t step, int64_t width, float weight, float* to) {
    for (int64_t d = 0; d < width; ++d) {
      const float entry = T::read(x[d * step]);
      if (!finite(entry)) to[d] += weight * entry;
    }
  }

  // Such rows of q or dout reach the keys that they see.
  template <class T>
  void add_odd_rows(const OddRows& odd, int from, int last, int64_t first, const float* w,
                    const View& of, int64_t size, int64_t width, float* to) {
    for (int a = 0; a < odd.count; ++a) {
      const int at = odd.row[a], strip = at / R;
      if (strip < from || strip >= last) continue;
      const T* x = of.at<const T>(n, row[at].h, row[at].i);
      for (int j = span[strip].lo; j < span[strip].hi; ++j)
        if (sees(p, n, row[at], first + j))
          add_odd(x, of.stride[3], size, w[(at - from * R) * LINE + j], to + j * width);
    }
  }

  // Such keys reach the rows that see them.
  template <class T>
  void add_odd_keys(int from, int last, int64_t first) {
    for (int a = 0; a < odd_k.count; ++a) {
      const int j = odd_k.key[a];
      const T* x = p.k.at<const T>(n, head, first + j);
      for (int64_t at = from * R; at < smaller(last * R, count); ++at)
        if (meets(static_cast<int>(at / R), j, j + 1) && sees(p, n, row[at], first + j))
          add_odd(x, p.k.stride[3], p.D, pulled[(at - from * R) * LINE + j], dq + at * D);
    }
  }

  template <class T>
  void pack_block(int64_t first, int width, const Span& any) {
    for (int c = any.lo / C; c * C < any.hi; ++c) {
      const int some = static_cast<int>(smaller(width - c * C, C));
      pack_keys<T>(p, n, head, first + c * C, some, k + c * C * places<T>(p.D));
      if (slopes.dout)
        pack_keys<T>(dual, n, head, first + c * C, some, v + c * C * places<T>(p.Dv));
    }
    if (slopes.dq)
      pack_values<T>(dual, n, head, first, any.lo, any.hi, keys, k_lines, odd_k);
    std::memset(dk + any.lo * D, 0, static_cast<size_t>((any.hi - any.lo) * D * 4));
    std::memset(dv + any.lo * Dv, 0, static_cast<size_t>((any.hi - any.lo) * Dv * 4));
  }

  template <class T>
  void add_strips(int from, int last, int64_t first, int width) {
    const Span any = seen_by(from, last);
    if (any.sight == Sight::none) return;
    multiply_keys<T>(from, last, any, p.D, q, k, weights);
    if (slopes.dout) multiply_keys<T>(from, last, any, p.Dv, dout, v, pulled);
    for (int i = from; i < last; ++i)
      weigh(i, first, width, any, weights + (i - from) * R * LINE, pulled + (i - from) * R * LINE);
    if (slopes.dv) {
      pull_keys(from, last, any, weights, dout_lines, Dv, dv);
      add_odd_rows<T>(odd_dout, from, last, first, weights, slopes.dout, p.Dv, Dv, dv);
    }
    if (slopes.dk) {
      pull_keys(from, last, any, pulled, q_lines, D, dk);
      add_odd_rows<T>(odd_q, from, last, first, pulled, p.q, p.D, D, dk);
    }
    if (slopes.dq) {
      pull_queries(from, last);
      add_odd_keys<T>(from, last, first);
    }
  }

  template <class T>
  void add_block(int64_t first, int width) {
    const Span any = look_at(first, width);
    if (any.sight == Sight::none) return;
    if (!packed) pack<T>();
    pack_block<T>(first, width, any);
    const int held = p.backward.held;
    for (int from = 0; from < strips; from += held)
      add_strips<T>(from, from + held < strips ? from + held : strips, first, width);
    for (int j = any.lo; j < any.hi; ++j) {
      const int64_t at = (n * p.Hk + head) * p.Tk + first + j;
      if (slopes.dk) add(slopes.dk + at * p.D, dk + j * D, p.D, p.scale);
      if (slopes.dv) add(slopes.dv + at * p.Dv, dv + j * Dv, p.Dv, 1.0f);
    }
  }

  static void add(float* to, const float* from, int64_t n, float factor) {
    for (int64_t d = 0; d < n; ++d) to[d] += from[d] * factor;
  }

  template <class T>
  void run(const Watch& watch) {
    const int64_t most = p.backward.strips * R;
    for (int64_t begin = cell.row_start; begin < cell.row_stop; begin += most) {
      take_rows(cell.n, cell.head, begin, smaller(begin + most, cell.row_stop));
      packed = false;
      for (int64_t first = cell.key_start; first < cell.key_stop; first += keys) {
        if (watch.stop()) return;
        add_block<T>(first, static_cast<int>(smaller(cell.key_stop - first, keys)));
      }
      if (!packed || !slopes.dq) continue;
      for (int64_t r = 0; r < count; ++r) {
        const int64_t at = (n * p.Hq + row[r].h) * p.Tq + row[r].i;
        add(slopes.dq + at * p.D, dq + r * D, p.D, p.scale);
      }
    }
  }
};

void backward(const Problem& p, const Slopes& slopes, const Cell& cell, char* memory,
              const Watch& watch) {
  Backward work(p, slopes, cell, memory);
  with_number(p.number, [&](auto number) { work.run<decltype(number)>(watch); });
}

}  // namespace
