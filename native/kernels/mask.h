// Which keys of a block a strip of rows may see.
#pragma once
#include "../problem.h"
#include "simd.h"

namespace {

using eyeline::Problem;
using eyeline::View;
using eyeline::Visible;

constexpr int KEYS = eyeline::MOST_KEYS;

enum class Sight { none, some, all };

// Keys lo <= j < hi of a block; outside of them no row of the strip sees anything.
struct Span {
  int lo = 0, hi = 0;
  Sight sight = Sight::none;
};

// A row of the weights: query i of query head h.
struct Row {
  int64_t h, i;
};

// Whether an interval of the row holds key j.
inline bool inside(const Visible& v, int64_t n, Row row, int64_t j) {
  const int64_t* starts = v.starts.at<const int64_t>(n, row.h, row.i);
  const int64_t* stops = v.stops.at<const int64_t>(n, row.h, row.i);
  for (int64_t a = 0; a < v.intervals; ++a)
    if (starts[a * v.starts.stride[3]] <= j && j < stops[a * v.stops.stride[3]]) return true;
  return false;
}

// The definition, for one pair.
inline bool sees(const Problem& p, int64_t n, Row row, int64_t j) {
  const Visible& v = p.visible;
  if (v.starts && !inside(v, n, row, j)) return false;
  if (v.keep && !*v.keep.at<const uint8_t>(n, row.h, j)) return false;
  if (v.q_ids && *v.q_ids.at<const int64_t>(n, row.h, row.i) !=
                     *v.k_ids.at<const int64_t>(n, row.h, j))
    return false;
  if (v.dense && !*v.dense.at<const uint8_t>(n, row.h, row.i, j)) return false;
  if (p.bias && *p.bias.at<const float>(n, row.h, row.i, j) == -infinity) return false;
  if (p.relative) {
    const int64_t at = j - p.position(row.i) + p.origin;
    if (*p.relative.at<const float>(n, row.h, at) == -infinity) return false;
  }
  return true;
}

// The keys of the block that intervals let some row of the strip see.
inline Span within_intervals(const Visible& v, int64_t n, const Row* rows, int count, int64_t first,
                             int width) {
  int64_t low = width, high = 0, same_low = 0, same_high = width;
  for (int r = 0; r < count; ++r) {
    const int64_t* starts = v.starts.at<const int64_t>(n, rows[r].h, rows[r].i);
    const int64_t* stops = v.stops.at<const int64_t>(n, rows[r].h, rows[r].i);
    int64_t row_low = width, row_high = 0;
    for (int64_t a = 0; a < v.intervals; ++a) {
      const int64_t start = larger(starts[a * v.starts.stride[3]] - first, 0);
      const int64_t stop = smaller(stops[a * v.stops.stride[3]] - first, width);
      if (start >= stop) continue;
      row_low = smaller(row_low, start);
      row_high = larger(row_high, stop);
    }
    low = smaller(low, row_low);
    high = larger(high, row_high);
    same_low = larger(same_low, row_low);
    same_high = smaller(same_high, row_high);
  }
  if (low >= high) return {};
  const bool all = v.intervals == 1 && low == same_low && high == same_high;
  return {static_cast<int>(low), static_cast<int>(high), all ? Sight::all : Sight::some};
}

// The keys that intervals let some row of a strip see, of all blocks together.
struct Reach {
  int64_t lo, hi;

  bool meets(int64_t first, int64_t width) const { return lo < first + width && hi > first; }
};

inline Reach reach(const Problem& p, int64_t n, const Row* rows, int count) {
  const Visible& v = p.visible;
  if (!v.starts) return {0, p.Tk};
  Reach found{p.Tk, 0};
  for (int r = 0; r < count; ++r)
    for (int64_t a = 0; a < v.intervals; ++a) {
      const int64_t start = *v.starts.at<const int64_t>(n, rows[r].h, rows[r].i, a);
      const int64_t stop = *v.stops.at<const int64_t>(n, rows[r].h, rows[r].i, a);
      if (start >= stop) continue;
      found.lo = smaller(found.lo, start);
      found.hi = larger(found.hi, stop);
    }
  return found;
}

// What each row sees of the block: seen [count, KEYS], 0 or 1; entries outside of `span` are 0.
inline void write_seen(const Visible& v, int64_t n, const Row* rows, int count, int64_t first,
                       const Span& span, uint8_t* seen) {
  for (int r = 0; r < count; ++r, seen += KEYS) {
    const Row row = rows[r];
    std::memset(seen, 0, KEYS);
    if (!v.starts) std::memset(seen + span.lo, 1, static_cast<size_t>(span.hi - span.lo));
    for (int64_t a = 0; a < v.intervals; ++a) {
      const int64_t* start = v.starts.at<const int64_t>(n, row.h, row.i, a);
      const int64_t* stop = v.stops.at<const int64_t>(n, row.h, row.i, a);
      const int64_t from = larger(*start - first, span.lo), to = smaller(*stop - first, span.hi);
      if (from < to) std::memset(seen + from, 1, static_cast<size_t>(to - from));
    }
    if (v.keep) {
      const uint8_t* keep = v.keep.at<const uint8_t>(n, row.h, first);
      const int64_t step = v.keep.stride[2];
      for (int j = span.lo; j < span.hi; ++j) seen[j] &= keep[j * step];
    }
    if (v.q_ids) {
      const int64_t id = *v.q_ids.at<const int64_t>(n, row.h, row.i);
      const int64_t* ids = v.k_ids.at<const int64_t>(n, row.h, first);
      const int64_t step = v.k_ids.stride[2];
      for (int j = span.lo; j < span.hi; ++j) seen[j] &= ids[j * step] == id;
    }
    if (v.dense) {
      const uint8_t* bits = v.dense.at<const uint8_t>(n, row.h, row.i, first);
      const int64_t step = v.dense.stride[3];
      for (int j = span.lo; j < span.hi; ++j) seen[j] &= bits[j * step];
    }
  }
}

// The span again, from what the rows see.
inline Span narrowed(const uint8_t* seen, int count, Span span) {
  uint8_t any[KEYS], all[KEYS];
  std::memcpy(any, seen, KEYS);
  std::memcpy(all, seen, KEYS);
  for (int r = 1; r < count; ++r)
    for (int j = 0; j < KEYS; ++j) {
      any[j] |= seen[r * KEYS + j];
      all[j] &= seen[r * KEYS + j];
    }
  while (span.lo < span.hi && !any[span.lo]) ++span.lo;
  while (span.hi > span.lo && !any[span.hi - 1]) --span.hi;
  if (span.lo == span.hi) return {};
  span.sight = std::memchr(all + span.lo, 0, static_cast<size_t>(span.hi - span.lo))
                   ? Sight::some
                   : Sight::all;
  return span;
}

// Whether more than intervals says who is seen. Then a strip's rows are written down: `seen`.
inline bool beyond_intervals(const Visible& v) { return v.keep || v.q_ids || v.dense; }

// What a strip of rows sees of the block of `width` keys from `first`. `seen` [count, KEYS] is
// written where intervals do not say all of it.
inline Span look(const Visible& v, int64_t n, const Row* rows, int count, int64_t first, int width,
                 uint8_t* seen) {
  Span span{0, width, Sight::all};
  if (v.starts) span = within_intervals(v, n, rows, count, first, width);
  if (span.sight == Sight::none || !beyond_intervals(v)) return span;
  write_seen(v, n, rows, count, first, span, seen);
  return narrowed(seen, count, span);
}

inline void hide_all(float* s, int64_t from, int64_t to) {
  for (int64_t j = from; j < to; ++j) s[j] = -infinity;
}

// -inf at the keys lo <= j < hi of a block that a row does not see: the span's, or all but those of
// its intervals, or, where these are not all, but those in `seen`, its line of what was written.
inline void hide(const Visible& v, int64_t n, Row row, int64_t first, const Span& span,
                 const uint8_t* seen, int lo, int hi, float* s) {
  if (span.sight == Sight::some && beyond_intervals(v)) {
    for (int j = lo; j < hi; ++j) s[j] = seen[j] ? s[j] : -infinity;
    return;
  }
  int64_t hidden = lo;  // from here on
  if (span.sight == Sight::all) {
    hide_all(s, lo, span.lo);
    hidden = span.hi;
  }
  for (int64_t a = 0; a < v.intervals && span.sight == Sight::some; ++a) {
    const int64_t start = *v.starts.at<const int64_t>(n, row.h, row.i, a) - first;
    const int64_t stop = *v.stops.at<const int64_t>(n, row.h, row.i, a) - first;
    const int64_t from = larger(start, span.lo), to = smaller(stop, span.hi);
    if (from >= to) continue;
    hide_all(s, hidden, from);
    hidden = to;
  }
  hide_all(s, hidden, hi);
}

}  // namespace
