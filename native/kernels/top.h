// The largest scores of a row, kept in the order of their size.
#pragma once
#include "product.h"

namespace {

// The largest of s[lo..hi) lane by lane; lo and hi are multiples of C. Two at a time, for one
// maximum waits for the one before.
inline F largest_lanes(const float* s, int lo, int hi) {
  F even = splat(-infinity), odd = even;
  for (int j = lo; j < hi; j += C) {
    even = max(load(s + j), even);
    odd = max(load(s + j + W), odd);
  }
  return max(even, odd);
}

// The first j of lo <= j < hi with s[j] == x, which is there.
inline int first_equal(const float* s, int lo, int hi, float x) {
  for (; lo < hi; lo += W)
    if (const uint32_t equal = lanes(load(s + lo) == x)) return lo + __builtin_ctz(equal);
  return hi;
}

// The n-th largest lane, -inf beyond the last: at least n numbers are as large.
inline float nth_largest(F lanes, int64_t n) {
  if (n > W) return -infinity;
  for (; n > 1; --n) {
    const I top = lanes == largest(lanes);
    lanes = top ? splat(-infinity) : lanes;
  }
  return largest(lanes);
}

// Unfilled places have the key -1 and stand last.
struct Top {
  int64_t count;
  float* score;
  int64_t* key;

  bool full() const { return key[count - 1] >= 0; }

  // Takes the place of the smallest; of equals the earlier one stands first.
  void insert(float s, int64_t j) {
    int64_t at = count - 1;
    for (; at > 0 && score[at - 1] < s; --at) {
      score[at] = score[at - 1];
      key[at] = key[at - 1];
    }
    score[at] = s;
    key[at] = j;
  }

  // Into the first unfilled place: for a score that is no larger than any before.
  void fill(float s, int64_t j) {
    int64_t at = 0;
    while (at < count && key[at] >= 0) ++at;
    if (at == count) return;
    score[at] = s;
    key[at] = j;
  }

  // Scores lo <= j < hi of a block, `high` the largest of them lane by lane.
  void add(const float* s, int lo, int hi, int64_t first, F high) {
    float least = score[count - 1];
    if (!(largest(high) > least)) return;
    const F bar = splat(full() ? -infinity : nth_largest(high, count));
    for (int j = lo; j < hi; j += W) {
      const F x = load(s + j);
      for (uint32_t left = lanes((x > least) & (x >= bar)); left; left &= left - 1) {
        const int at = j + __builtin_ctz(left);
        if (!(s[at] > least)) continue;
        insert(s[at], first + at);
        least = score[count - 1];
      }
    }
  }
};

}  // namespace
