// Rows of one key head in strips of R, and what these see of the block of keys at hand.
#pragma once
#include "mask.h"
#include "product.h"

namespace {

struct Strips {
  const Problem& p;
  int64_t n = 0, head = 0;  // of the batch, and of keys
  int64_t count = 0;  // rows at hand
  int strips = 0;
  Row* row;           // [strips · R]
  Reach* reaches;     // [strips]
  Span* span;         // [strips]
  uint8_t* seen;      // [R, KEYS] of one strip

  // Of at most so many rows, a multiple of R.
  static int64_t bytes(int64_t rows) {
    return rows * static_cast<int64_t>(sizeof(Row)) +
           rows / R * static_cast<int64_t>(sizeof(Reach) + sizeof(Span)) + R * KEYS + 4 * 64;
  }

  Strips(const Problem& p, int64_t rows, char*& memory) : p(p) {
    row = take<Row>(memory, rows);
    reaches = take<Reach>(memory, rows / R);
    span = take<Span>(memory, rows / R);
    seen = take<uint8_t>(memory, R * KEYS);
  }

  int rows_of(int strip) const { return static_cast<int>(smaller(count - strip * R, R)); }

  // The rows begin <= r < end of a key head, as problem.h numbers them.
  void take_rows(int64_t of_n, int64_t of_head, int64_t begin, int64_t end) {
    const int64_t group = p.group();
    n = of_n, head = of_head;
    count = end - begin;
    strips = static_cast<int>(eyeline::up(count, R));
    for (int64_t r = begin; r < end; ++r) row[r - begin] = {head * group + r % group, r / group};
    for (int i = 0; i < strips; ++i) reaches[i] = reach(p, n, row + i * R, rows_of(i));
  }

  // What each strip sees of a block; the keys that some strip sees.
  Span look_at(int64_t first, int width) {
    for (int i = 0; i < strips; ++i) {
      span[i] = {};
      if (reaches[i].meets(first, width))
        span[i] = look(p.visible, n, row + i * R, rows_of(i), first, width, seen);
    }
    return seen_by(0, strips);
  }

  // The keys that some of the strips from..to see.
  Span seen_by(int from, int to) const {
    Span any{KEYS, 0, Sight::none};
    for (int i = from; i < to; ++i) {
      if (span[i].sight == Sight::none) continue;
      any.lo = span[i].lo < any.lo ? span[i].lo : any.lo;
      any.hi = span[i].hi > any.hi ? span[i].hi : any.hi;
      any.sight = Sight::some;
    }
    return any;
  }
};

}  // namespace
