// The largest scores of a row, kept in the order of their size.
#pragma once
#include "simd.h"

namespace {

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

  // Scores lo <= j < hi of a block, `largest` the largest of them.
  void add(const float* s, int lo, int hi, int64_t first, float largest) {
    float least = score[count - 1];
    if (!(largest > least)) return;
    for (int j = lo; j < hi; j += W)
      for (uint32_t left = lanes(load(s + j) > least); left; left &= left - 1) {
        const int at = j + __builtin_ctz(left);
        if (!(s[at] > least)) continue;
        insert(s[at], first + at);
        least = score[count - 1];
      }
  }
};

}  // namespace
