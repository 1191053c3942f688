// The scores of some rows of one key head, a block of keys at a time.
#pragma once
#include "direct.h"
#include "pack.h"
#include "softmax.h"
#include "strips.h"

namespace {

struct Scores : Strips {
  static constexpr int LINE = KEYS + 16;  // lines of one strip share no cache set

  bool direct;   // one query, whose keys are not packed
  bool plain;
  float factor;  // from what `line` holds to a base-2 logit
  float unit;    // from what `line` holds to a score

  float* q;       // [strips, places, R]; direct: [strips, R, D rounded up to whole vectors]
  float* k;       // [keys / C, places, C]
  float* s;       // [held, R, LINE]; direct: [held, R, KEYS]

  static int64_t most_rows(const Problem& p) {
    return smaller(p.blocks.strips * R, round_up(p.Tq * p.group(), R));
  }

  static int64_t bytes(const Problem& p) {
    const int64_t rows = most_rows(p), held = smaller(rows, p.blocks.held * R);
    const int64_t floats = rows * round_up(p.D, W) + p.blocks.keys * p.D + held * LINE;
    return Strips::bytes(rows) + floats * 4 + 3 * 64;
  }

  Scores(const Problem& p, char*& memory) : Strips(p, most_rows(p), memory), direct(false) {
    plain = is_plain(p);
    factor = to_logit(p);
    unit = to_score(p);
    const int64_t rows = most_rows(p);
    q = take<float>(memory, rows * round_up(p.D, W));
    k = take<float>(memory, p.blocks.keys * p.D);
    s = take<float>(memory, smaller(rows, p.blocks.held * R) * LINE);
  }

  // Of one query keys are read where they lie, which adds up a score in another order.
  void read_one_directly() {
    direct = p.Tq == 1 && p.group() <= DIRECT_ROWS && p.k.stride[3] == 1;
  }

  float* line(int held, int r) const { return s + (held * R + r) * (direct ? KEYS : LINE); }

  template <class T>
  void start(int64_t of_n, int64_t of_head, int64_t begin, int64_t end) {
    take_rows(of_n, of_head, begin, end);
    if (direct) return lay_queries<T>();
    for (int i = 0; i < strips; ++i)
      pack_queries<T>(p, n, row + i * R, rows_of(i), q + i * R * places<T>(p.D));
  }

  // Beside each other, 0 beyond D and in rows that are not there.
  template <class T>
  void lay_queries() {
    const int64_t width = round_up(p.D, W);
    std::memset(q, 0, static_cast<size_t>(strips * R * width * 4));
    for (int64_t r = 0; r < count; ++r)
      read_line(p.q.at<const T>(n, row[r].h, row[r].i), p.q.stride[3], p.D, q + r * width);
  }

  // Packs the keys that some strip sees of a block.
  template <class T>
  void pack(int64_t first, int width, const Span& any) {
    for (int c = any.lo / C; c * C < any.hi; ++c) {
      const int keys = static_cast<int>(smaller(width - c * C, C));
      pack_keys<T>(p, n, head, first + c * C, keys, k + c * C * places<T>(p.D));
    }
  }

  // q·k of one query's rows.
  template <class T>
  void multiply_directly(int64_t first) {
    const T* keys = p.k.at<const T>(n, head, first);
    const int64_t width = round_up(p.D, W);
    for (int i = 0; i < strips; ++i) {
      if (span[i].sight == Sight::none) continue;
      with_rows(rows_of(i), [&](auto rows) {
        direct_scores<T, decltype(rows)::value>(keys, p.k.stride[2], p.D, span[i].lo, span[i].hi,
                                                q + i * R * width, width, line(i, 0));
      });
    }
  }

  // q·k of the strips from..to.
  template <class T>
  void multiply(int from, int to, const Span& any) {
    const int64_t width = places<T>(p.D);
    for (int c = any.lo / C; c * C < any.hi; ++c)
      for (int i = from; i < to; ++i) {
        const int lo = span[i].lo - c * C, hi = span[i].hi - c * C;
        if (span[i].sight == Sight::none || hi <= 0 || lo >= C) continue;
        multiply_tile<paired<T>>(width, q + i * R * width, k + c * C * width, lo, hi,
                                 line(i - from, 0) + c * C, LINE);
      }
  }

  // The columns of a strip in whole tiles.
  int low(int strip) const { return span[strip].lo / C * C; }
  int high(int strip) const { return static_cast<int>(round_up(span[strip].hi, C)); }

  // q·k of a strip become logits up to `factor`, -inf where hidden and where no key is.
  void finish(int strip, int held, int64_t first, int width) {
    const Span sp = span[strip];
    const int lo = low(strip), hi = high(strip), rows = rows_of(strip);
    const Row* here = row + strip * R;
    if (sp.sight == Sight::some && beyond_intervals(p.visible))
      write_seen(p.visible, n, here, rows, first, sp, seen);
    for (int r = 0; r < rows; ++r) {
      float* scores = line(held, r);
      if (!plain) finish_scores(p, n, here[r], first, width, lo, hi, scores);
      hide(p.visible, n, here[r], first, sp, seen + r * KEYS, lo, hi, scores);
    }
  }

  // Calls `f(strip, held, first)` with each strip's scores of each block that begins within
  // begin..end; false if stopped. `begin` is a multiple of a block.
  template <class T, class Call>
  bool each(const eyeline::Watch& watch, int64_t begin, int64_t end, const Call& f) {
    for (int64_t first = begin; first < end; first += p.blocks.keys) {
      if (watch.stop()) return false;
      const int width = static_cast<int>(smaller(p.Tk - first, p.blocks.keys));
      const Span any = look_at(first, width);
      if (any.sight == Sight::none) continue;
      if (!direct) pack<T>(first, width, any);
      for (int from = 0; from < strips; from += p.blocks.held) {
        const int to = from + p.blocks.held < strips ? from + p.blocks.held : strips;
        direct ? multiply_directly<T>(first) : multiply<T>(from, to, any);
        for (int i = from; i < to; ++i) {
          if (span[i].sight == Sight::none) continue;
          finish(i, i - from, first, width);
          f(i, i - from, first);
        }
      }
    }
    return true;
  }
};

}  // namespace
