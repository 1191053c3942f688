// out = softmax(q kᵀ) v of some rows of one key head, keys block by block.
#pragma once
#include "direct.h"
#include "pack.h"
#include "panel.h"
#include "softmax.h"
#include "strips.h"

namespace {

using eyeline::Part;
using eyeline::Watch;

// A part on its way. Everything the loops touch, in one piece of memory.
struct Forward : Strips {
  Part part;
  bool plain;
  bool direct;     // few rows, whose keys and values are not packed; without values rows are asked
                   // for their state alone, in the order in which backward.h sums up scores
  bool panels;     // direct, and more rows than are worth a key's own lanes: panel.h
  float factor;    // from what is left of a score to a base-2 logit
  int64_t Dv;      // rounded up to whole tiles

  float* q;        // [strips, places, R]; direct: [strips, R, D rounded up to whole vectors], or
                   // [panels, places, W]
  float* k;        // [keys / C, places, C]
  float* v;        // [Dv / C, keys, C]
  float* s;        // [held, R, KEYS] scores, then weights
  float* out;      // [strips, R, Dv] sums so far
  Softmax* row_sum;  // [strips · R]

  static int64_t most_rows(const Problem& p) {
    return smaller(p.blocks.strips * R, round_up(p.Tq * p.group(), R));
  }

  static int64_t bytes(const Problem& p) {
    const int64_t Dv = round_up(p.Dv, C), rows = most_rows(p);
    const int64_t floats = round_up(rows, W) * round_up(p.D, W) + rows * Dv +
                           p.blocks.keys * (p.D + Dv) + smaller(rows, p.blocks.held * R) * KEYS;
    return Strips::bytes(rows) + floats * 4 + rows * static_cast<int64_t>(sizeof(Softmax)) + 6 * 64;
  }

  Forward(const Problem& p, const Part& part, char* memory)
      : Strips(p, most_rows(p), memory), part(part) {
    plain = is_plain(p);
    const int64_t all = p.Tq * p.group();
    direct = p.Dv > 0 && all <= smaller(PANEL_ROWS, p.blocks.held * R) &&
             p.k.stride[3] == 1 && p.v.stride[3] == 1;
    panels = direct && all > DIRECT_ROWS;
    factor = to_logit(p);
    Dv = round_up(p.Dv, C);
    const int64_t rows = most_rows(p);
    q = take<float>(memory, round_up(rows, W) * round_up(p.D, W));
    k = take<float>(memory, p.blocks.keys * p.D);
    v = take<float>(memory, p.blocks.keys * Dv);
    s = take<float>(memory, smaller(rows, p.blocks.held * R) * KEYS);
    out = take<float>(memory, rows * Dv);
    row_sum = take<Softmax>(memory, rows);
  }

  template <class T>
  void start() {
    take_rows(part.n, part.head, part.start, part.stop);
    for (int64_t r = 0; r < count; ++r) row_sum[r].start(p, n, row[r]);
    if (panels) {
      for (int64_t r = 0; r < count; r += W)
        pack_panel<T>(p, n, row + r, smaller(count - r, W), q + r * places<T>(p.D));
    } else if (direct) {
      const int64_t width = round_up(p.D, W);
      std::memset(q, 0, static_cast<size_t>(strips * R * width * 4));
      for (int64_t r = 0; r < count; ++r)
        read_line(p.q.at<const T>(n, row[r].h, row[r].i), p.q.stride[3], p.D, q + r * width);
    } else {
      for (int i = 0; i < strips; ++i)
        pack_queries<T>(p, n, row + i * R, rows_of(i), q + i * R * places<T>(p.D));
    }
    std::memset(out, 0, static_cast<size_t>(strips * R * Dv * 4));
  }

  // A tile's biases come while its products are summed up. What is asked for never comes where the
  // address of its page is not at hand: of a strip's first tile one number of each row is read.
  void ask_for_bias(int strip, int64_t j, bool first_tile) const {
    if (!p.bias || p.bias.stride[3] != 1) return;
    for (int r = 0; r < rows_of(strip); ++r) {
      const Row at = row[strip * R + r];
      const float* bias = p.bias.at<const float>(n, at.h, at.i, j);
      if (first_tile) (void)*static_cast<const volatile float*>(bias);
      for (int c = 0; c < C; c += CACHE_LINE / 4) __builtin_prefetch(bias + c, 0, 2);
    }
  }

  // s [R, KEYS] = q [R, D] · kᵀ [D, KEYS] for the strips from..to.
  template <class T>
  void multiply_keys(int from, int to, int64_t first, const Span& any) {
    const int64_t width = places<T>(p.D);
    for (int c = any.lo / C; c * C < any.hi; ++c)
      for (int i = from; i < to; ++i) {
        const int lo = span[i].lo - c * C, hi = span[i].hi - c * C;
        if (span[i].sight == Sight::none || hi <= 0 || lo >= C) continue;
        ask_for_bias(i, first + c * C, c == span[i].lo / C);
        multiply_tile<paired<T>>(width, q + i * R * width, k + c * C * width, lo, hi,
                                 s + (i - from) * R * KEYS + c * C, KEYS);
      }
  }

  // Scores of a strip become weights relative to the rows' largest so far; decay [R].
  void weigh(int strip, int64_t first, int width, float* scores, float* decay) {
    const Span sp = span[strip];
    const int lo = sp.lo / W * W, hi = static_cast<int>(round_up(sp.hi, W)), rows = rows_of(strip);
    const Row* here = row + strip * R;
    float top[R];
    if (sp.sight == Sight::some && beyond_intervals(p.visible))
      write_seen(p.visible, n, here, rows, first, sp, seen);
    for (int r = 0; r < rows; ++r) {
      float* line = scores + r * KEYS;
      if (!plain) finish_scores(p, n, here[r], first, width, lo, hi, line);
      hide(p.visible, n, here[r], first, sp, seen + r * KEYS, lo, hi, line);
      top[r] = Softmax::largest_of(line, lo, hi, factor);
    }
    for (int r = 0; r < rows; ++r) {
      float* line = scores + r * KEYS;
      decay[r] = row_sum[strip * R + r].add(line, lo, hi, factor, top[r]);
      if (p.dropout.here) drop(p, n, here[r], first, sp.lo, sp.hi, line);
    }
  }

  // out [rows, Dv] = out · decay + weights [rows, KEYS] · v [keys, Dv], one tile of C columns. A block
  // is summed up by itself: over long texts that keeps most of the roundings small.
  template <int rows>
  void multiply_values(int strip, int column, const float* weights, const float* decay) {
    const Span sp = span[strip];
    float* tile = out + strip * R * Dv + column * C;
    F sums[rows][2];
    for (int r = 0; r < rows; ++r) sums[r][0] = sums[r][1] = F{};
    const float* panel = v + (column * p.blocks.keys + sp.lo) * C;
    add_product<rows, KEYS, 1>(sp.hi - sp.lo, weights + sp.lo, panel, sums);
    for (int r = 0; r < rows; ++r) {
      store(tile + r * Dv, load(tile + r * Dv) * decay[r] + sums[r][0]);
      store(tile + r * Dv + W, load(tile + r * Dv + W) * decay[r] + sums[r][1]);
    }
  }

  // What entries of a key's value that are not finite give to the rows that see it.
  template <class T>
  void add_odd(int j, int strip, int64_t first, const float* weights) {
    if (j < span[strip].lo || j >= span[strip].hi) return;
    const T* value = p.v.at<const T>(n, head, first + j);
    for (int r = 0; r < rows_of(strip); ++r) {
      if (!sees(p, n, row[strip * R + r], first + j)) continue;
      for (int64_t d = 0; d < p.Dv; ++d) {
        const float x = T::read(value[d * p.v.stride[3]]);
        if (!finite(x)) out[(strip * R + r) * Dv + d] += weights[r * KEYS + j] * x;
      }
    }
  }

  // s = q · k of all strips, over keys where they lie.
  template <class T>
  void read_keys(int64_t first, const Span& any) {
    const T* keys = p.k.at<const T>(n, head, first);
    const int64_t step = p.k.stride[2], wide = round_up(p.D, W);
    if (panels)
      return panel_scores<T>(keys, step, p.D, any.lo, any.hi, q, static_cast<int>(count), k, s);
    for (int i = 0; i < strips; ++i) {
      const Span sp = span[i];
      if (sp.sight == Sight::none) continue;
      with_rows(rows_of(i), [&](auto rows) {
        direct_scores<T, decltype(rows)::value>(keys, step, p.D, sp.lo, sp.hi, q + i * R * wide,
                                                wide, s + i * R * KEYS);
      });
    }
  }

  // out += weights · v of all strips, over values where they lie: few at a time, so that one strip
  // finds them near after the other. Which these are does not depend on the strips beside it.
  template <class T>
  void read_values(int64_t first, int width) {
    const T* values = p.v.at<const T>(n, head, first);
    bool finite[eyeline::MOST_HELD];
    std::memset(finite, 1, sizeof finite);
    const int length = static_cast<int>(round_up(eyeline::up(width, RUNS), CLOSE));
    for (int from = 0; from < length; from += CLOSE)
      for (int i = 0; i < strips; ++i) {
        Weighed<T> these{values, p.v.stride[2], p.Dv, s + i * R * KEYS, i, strips, {}, {}};
        if (!these.take(from, length, span[i].lo, span[i].hi)) continue;
        with_rows(rows_of(i), [&](auto rows) {
          finite[i] &= direct_values<T, decltype(rows)::value>(these, out + i * R * Dv, Dv);
        });
      }
    for (int i = 0; i < strips; ++i)
      for (int j = span[i].lo; j < span[i].hi && !finite[i]; ++j)
        add_odd<T>(j, i, first, s + i * R * KEYS);
  }

  // All strips over keys and values where they lie.
  template <class T>
  void add_direct(int64_t first, int width, const Span& any) {
    read_keys<T>(first, any);
    for (int i = 0; i < strips; ++i) {
      if (span[i].sight == Sight::none) continue;
      float decay[R], *sums = out + i * R * Dv;
      weigh(i, first, width, s + i * R * KEYS, decay);
      for (int r = 0; r < rows_of(i); ++r)
        for (int64_t d = 0; d < Dv; d += W)
          store(sums + r * Dv + d, load(sums + r * Dv + d) * decay[r]);
    }
    read_values<T>(first, width);
  }

  template <class T>
  void add_block(int64_t first, int width) {
    const Span any = look_at(first, width);
    if (any.sight == Sight::none) return;
    if (direct) return add_direct<T>(first, width, any);
    for (int c = any.lo / C; c * C < any.hi; ++c) {
      const int keys = static_cast<int>(smaller(width - c * C, C));
      pack_keys<T>(p, n, head, first + c * C, keys, k + c * C * places<T>(p.D));
    }
    const int held = p.blocks.held;
    Odd odd;
    pack_values<T>(p, n, head, first, any.lo, any.hi, p.blocks.keys, v, odd);
    for (int from = 0; from < strips; from += held) {
      const int to = from + held < strips ? from + held : strips;
      multiply_keys<T>(from, to, first, any);
      float decay[eyeline::MOST_HELD][R];
      for (int i = from; i < to; ++i)
        if (span[i].sight != Sight::none)
          weigh(i, first, width, s + (i - from) * R * KEYS, decay[i - from]);
      for (int column = 0; column * C < Dv; ++column)
        for (int i = from; i < to; ++i) {
          if (span[i].sight == Sight::none) continue;
          const float* weights = s + (i - from) * R * KEYS;
          with_rows(rows_of(i), [&](auto rows) {
            multiply_values<decltype(rows)::value>(i, column, weights, decay[i - from]);
          });
        }
      for (int a = 0; a < odd.count; ++a)
        for (int i = from; i < to; ++i)
          if (span[i].sight != Sight::none)
            add_odd<T>(odd.key[a], i, first, s + (i - from) * R * KEYS);
    }
  }

  template <class T>
  void finish() {
    for (int64_t at = 0; at < count; ++at) {
      const Row here = row[at];
      T* to = p.out.at<T>(n, here.h, here.i);
      const float l = row_sum[at].l, total = l == 0.0f ? 1.0f : l, *sums = out + at * Dv;
      int64_t d = 0;
      if (p.out.stride[3] == 1)
        for (; d + W <= p.Dv; d += W) T::write(to + d, load(sums + d) / total);
      for (; d < p.Dv; ++d) to[d * p.out.stride[3]] = T::round(sums[d] / total);
      const int64_t number = (n * p.Hq + here.h) * p.Tq + here.i;
      p.lse[number] = row_sum[at].lse();
      row_sum[at].write(p.m + number, p.l + number);
    }
  }

  void forget_sinks() {
    for (int64_t at = 0; at < count; ++at) row_sum[at] = Softmax{};
  }

  // [rows, Dv + 2]: what some of the keys give to each row, its m and l.
  void leave(float* partial) const {
    for (int64_t at = 0; at < count; ++at, partial += p.Dv + 2) {
      std::memcpy(partial, out + at * Dv, static_cast<size_t>(p.Dv * 4));
      partial[p.Dv] = row_sum[at].m;
      partial[p.Dv + 1] = row_sum[at].l;
    }
  }

  void add_partial(const float* partial) {
    for (int64_t at = 0; at < count; ++at, partial += p.Dv + 2) {
      const Factors by = row_sum[at].add({partial[p.Dv], partial[p.Dv + 1]});
      for (int64_t d = 0; d < p.Dv; ++d)
        out[at * Dv + d] = out[at * Dv + d] * by.own + partial[d] * by.theirs;
    }
  }

  template <class T>
  void run(const Watch& watch) {
    start<T>();
    if (part.key_start > 0) forget_sinks();  // who has the first keys counts them
    for (int64_t first = part.key_start; first < part.key_stop; first += p.blocks.keys) {
      if (watch.stop()) return;
      add_block<T>(first, static_cast<int>(smaller(part.key_stop - first, p.blocks.keys)));
    }
    if (part.partial)
      leave(part.partial);
    else
      finish<T>();
  }

  // The rows of parts that had some of the keys each, in their order.
  template <class T>
  void join(const float* partials, int64_t parts) {
    start<T>();
    forget_sinks();
    for (int64_t i = 0; i < parts; ++i) add_partial(partials + i * count * (p.Dv + 2));
    finish<T>();
  }
};

void forward(const Problem& p, const Part& part, char* memory, const Watch& watch) {
  Forward work(p, part, memory);
  with_number(p.number, [&](auto number) { work.run<decltype(number)>(watch); });
}

void join(const Problem& p, const Part& part, const float* partials, int64_t count, char* memory) {
  Forward work(p, part, memory);
  with_number(p.number, [&](auto number) { work.join<decltype(number)>(partials, count); });
}

}  // namespace
