// The scores of some rows of one key head, a block of keys at a time.
#pragma once
#include "direct.h"
#include "pack.h"
#include "softmax.h"

namespace {

using eyeline::Part;

struct Scores {
  static constexpr int GROUP = 16;   // strips whose scores are held at once
  static constexpr int STRIPS = 128;  // strips that share packed keys
  static constexpr int LINE = KEYS + 16;  // lines of one strip share no cache set

  const Problem& p;
  Part part;
  int strips;
  bool direct;   // one query, whose keys are not packed
  bool plain;
  float factor;  // from what `line` holds to a base-2 logit
  float unit;    // from what `line` holds to a score

  float* q;       // [strips, places, R]; direct: [strips, R, D rounded up to whole vectors]
  float* k;       // [KEYS / C, places, C]
  float* s;       // [GROUP, R, LINE]; direct: [GROUP, R, KEYS]
  Row* row;       // [strips · R]
  Reach* reaches;  // [strips]
  Span* span;     // [strips]
  uint8_t* seen;  // [R, KEYS] of one strip

  static int64_t most_rows(const Problem& p) {
    return smaller(STRIPS * R, round_up(p.Tq * p.group(), R));
  }

  static int64_t bytes(const Problem& p) {
    const int64_t rows = most_rows(p), held = smaller(rows, GROUP * R);
    return (rows * round_up(p.D, W) + KEYS * p.D + held * LINE) * 4 + R * KEYS + 7 * 64 +
           rows * static_cast<int64_t>(sizeof(Row)) +
           rows / R * static_cast<int64_t>(sizeof(Reach) + sizeof(Span));
  }

  Scores(const Problem& p, char*& memory) : p(p), part(), strips(0), direct(false) {
    plain = is_plain(p);
    factor = to_logit(p);
    unit = to_score(p);
    const int64_t rows = most_rows(p);
    q = take<float>(memory, rows * round_up(p.D, W));
    k = take<float>(memory, KEYS * p.D);
    s = take<float>(memory, smaller(rows, GROUP * R) * LINE);
    row = take<Row>(memory, rows);
    reaches = take<Reach>(memory, rows / R);
    span = take<Span>(memory, rows / R);
    seen = take<uint8_t>(memory, R * KEYS);
  }

  int rows_of(int strip) const {
    return static_cast<int>(smaller(part.stop - part.start - strip * R, R));
  }

  // Of one query keys are read where they lie, which adds up a score in another order.
  void read_one_directly() {
    direct = p.Tq == 1 && p.group() <= DIRECT_ROWS && p.k.stride[3] == 1;
  }

  float* line(int held, int r) const { return s + (held * R + r) * (direct ? KEYS : LINE); }

  template <class T>
  void start(int64_t n, int64_t head, int64_t first, int64_t stop) {
    part.n = n, part.head = head, part.start = first, part.stop = stop;
    strips = static_cast<int>((part.stop - part.start + R - 1) / R);
    const int64_t group = p.group();
    for (int64_t r = part.start; r < part.stop; ++r)
      row[r - part.start] = {part.head * group + r % group, r / group};
    for (int i = 0; i < strips; ++i) reaches[i] = reach(p, part.n, row + i * R, rows_of(i));
    if (direct) return lay_queries<T>();
    for (int i = 0; i < strips; ++i)
      pack_queries<T>(p, part.n, row + i * R, rows_of(i), q + i * R * places<T>(p.D));
  }

  // Beside each other, 0 beyond D and in rows that are not there.
  template <class T>
  void lay_queries() {
    const int64_t width = round_up(p.D, W), rows = part.stop - part.start;
    std::memset(q, 0, static_cast<size_t>(strips * R * width * 4));
    for (int64_t r = 0; r < rows; ++r)
      read_line(p.q.at<const T>(part.n, row[r].h, row[r].i), p.q.stride[3], p.D, q + r * width);
  }

  // Packs the keys that some strip sees of a block. False where none sees any.
  template <class T>
  bool pack(int64_t first, int width) {
    int low = width, high = 0;
    for (int i = 0; i < strips; ++i) {
      span[i] = {};
      if (reaches[i].meets(first, width))
        span[i] = look(p.visible, part.n, row + i * R, rows_of(i), first, width, seen);
      if (span[i].sight == Sight::none) continue;
      low = span[i].lo < low ? span[i].lo : low;
      high = span[i].hi > high ? span[i].hi : high;
    }
    for (int c = low / C; c * C < high && !direct; ++c) {
      const int count = static_cast<int>(smaller(width - c * C, C));
      pack_keys<T>(p, part.n, part.head, first + c * C, count, k + c * C * places<T>(p.D));
    }
    return low < high;
  }

  // q·k of one query's rows.
  template <class T>
  void multiply_directly(int64_t first) {
    const T* keys = p.k.at<const T>(part.n, part.head, first);
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
  void multiply(int from, int to) {
    const int64_t width = places<T>(p.D);
    for (int c = 0; c < KEYS / C; ++c)
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
      write_seen(p.visible, part.n, here, rows, first, sp, seen);
    for (int r = 0; r < rows; ++r) {
      float* scores = line(held, r);
      if (!plain) finish_scores(p, part.n, here[r], first, width, lo, hi, scores);
      hide(p.visible, part.n, here[r], first, sp, seen + r * KEYS, lo, hi, scores);
    }
  }

  // Calls `f(strip, held, first)` with each strip's scores of each block that begins within
  // begin..end; false if stopped. `begin` is a multiple of a block.
  template <class T, class Call>
  bool each(const eyeline::Watch& watch, int64_t begin, int64_t end, const Call& f) {
    for (int64_t first = begin; first < end; first += p.blocks.keys) {
      if (watch.stop()) return false;
      const int width = static_cast<int>(smaller(p.Tk - first, p.blocks.keys));
      if (!pack<T>(first, width)) continue;
      for (int from = 0; from < strips; from += GROUP) {
        const int to = from + GROUP < strips ? from + GROUP : strips;
        direct ? multiply_directly<T>(first) : multiply<T>(from, to);
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
