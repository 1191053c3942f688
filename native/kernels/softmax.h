// A row of scores made into weights, block by block: the online softmax in base 2.
#pragma once
#include "exponential.h"
#include "mask.h"
#include "number.h"
#include "product.h"

namespace {

struct Factors {
  float own, theirs;
};

// Σ 2^(s - m) so far, with the largest s; s = score · log2(e).
struct Softmax {
  float m = -infinity, l = 0.0f;

  void start(const Problem& p, int64_t n, Row row) {
    m = -infinity;
    l = 0.0f;
    if (!p.sinks) return;
    m = *p.sinks.at<const float>(n, row.h) * log2e;
    if (m != -infinity) l = exp2(m - m);
  }

  // From here on m is rounded so much that a product which is not, less m, is no exponent.
  static constexpr float far = 1.5e9f;

  // What scores are to be multiplied by on their way to a logit. Of a row with far ones they have
  // been, and are rounded as m is; where that overflows, inf - inf makes the row NaN.
  float near(float* s, int64_t count, float factor) const {
    if (m == -infinity || (-far < m && m < far)) return factor;
    for (int64_t j = 0; j < count; ++j) {
      const float logit = s[j] * factor;
      s[j] = m < logit ? m : logit;
    }
    return 1.0f;
  }

  // Scores s[lo..hi) · factor, `top` the largest of them, become 2^(s - m); all sums so far are to
  // be multiplied by what comes back. lo and hi are multiples of W.
  float add(float* s, int lo, int hi, float factor, float top) {
    const float before = m;
    m = top > m ? top : m;
    const float shift = m == -infinity ? 0.0f : m;
    factor = near(s + lo, hi - lo, factor);
    F total{};
    for (int j = lo; j < hi; j += W) {
      const F w = exp2(load(s + j) * factor - shift);
      store(s + j, w);
      total += w;
    }
    const float decay = exp2(before - shift);
    l = l * decay + sum(total);
    return decay;
  }

  // The sums over other keys are added; what so far's and theirs are to be multiplied by.
  Factors add(const Softmax& other) {
    const float before = m;
    m = other.m > m ? other.m : m;
    const float shift = m == -infinity ? 0.0f : m;
    const float own = exp2(before - shift), theirs = exp2(other.m - shift);
    l = l * own + other.l * theirs;
    return {own, theirs};
  }

  static float largest_of(const float* s, int lo, int hi, float factor) {
    F top = splat(-infinity);
    for (int j = lo; j < hi; j += W) top = max(load(s + j), top);
    return largest(top) * factor;
  }

  // m and l in natural units. What m loses when it is rounded l makes up for, so that weights keep
  // their accuracy at scores of thousands; not beyond `most`, where that is more than l can hold
  // (and below `far`, where a logit is rounded as the m is that belongs to it).
  static constexpr float most = 1e9f;

  static bool kept(float m) { return m == -infinity || (-most < m && m < most); }

  void write(float* to_m, float* to_l) const {
    *to_m = static_cast<float>(m * ln2);
    *to_l = kept(*to_m) && finite(m) ? static_cast<float>(l * __builtin_exp2(m - *to_m / ln2)) : l;
  }

  void read(float from_m, float from_l) {
    const double exact = from_m / ln2;
    m = static_cast<float>(exact);
    l = kept(from_m) && finite(m) ? static_cast<float>(from_l * __builtin_exp2(exact - m)) : from_l;
  }

  float lse() const {
    if (l == 0.0f) return -infinity;
    if (m == infinity) return m;
    return static_cast<float>(m * ln2 + __builtin_log(static_cast<double>(l)));
  }
};

// Whether a score is q·k times a factor > 0 and nothing else. Such are left as products until an
// exponent is made of them; others become scores first (finish_scores).
inline bool is_plain(const Problem& p) {
  return p.scale > 0.0f && p.scale < infinity && !(p.softcap > 0.0f) && !p.bias && !p.relative;
}

// From one or the other to a score, and to a base-2 logit.
inline float to_score(const Problem& p) { return is_plain(p) ? p.scale : 1.0f; }
inline float to_logit(const Problem& p) { return to_score(p) * log2e; }

// Up to W entries of a bias, `step` apart; 0 beyond `count`.
inline F biases(const float* from, int64_t step, int64_t count) {
  if (step == 1 && count >= W) return load(from);
  F v{};
  for (int64_t j = 0; j < W && j < count; ++j) v[j] = from[j * step];
  return v;
}

// A bias of -inf hides even what is NaN.
inline F add_bias(F score, F bias) { return bias == -infinity ? bias : score + bias; }

// Products q·k of keys lo <= j < hi of a block become scores, with scale, softcap and biases. The
// range is in whole vectors; what lies beyond the block's width is to be hidden afterwards.
inline void finish_scores(const Problem& p, int64_t n, Row row, int64_t first, int width, int lo,
                          int hi, float* s) {
  const int64_t step = p.bias.stride[3];
  const float* bias = p.bias ? p.bias.at<const float>(n, row.h, row.i, first) : nullptr;
  const float* relative =
      p.relative ? p.relative.at<const float>(n, row.h, first - p.position(row.i) + p.origin)
                 : nullptr;
  for (int j = lo; j < hi; j += W) {
    F x = load(s + j) * p.scale;
    if (p.softcap > 0.0f) x = tanh(x / p.softcap) * p.softcap;
    if (bias) x = add_bias(x, biases(bias + j * step, step, width - j));
    if (relative) x = add_bias(x, biases(relative + j, 1, width - j));
    store(s + j, x);
  }
}

// The finaliser of splitmix64, as eyeline/backends/random.py has it.
inline uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// Leaves out weights, each by its own random number, and scales those that stay.
inline void drop(const Problem& p, int64_t n, Row row, int64_t first, int lo, int hi, float* w) {
  constexpr uint64_t step = 0x9E3779B97F4A7C15u;
  uint64_t key = p.dropout.seed;
  const int64_t place[3] = {n, row.h, row.i};
  for (const int64_t index : place) key = mix(key + (static_cast<uint64_t>(index) + 1) * step);
  for (int j = lo; j < hi; ++j) {
    const uint64_t drawn = mix(key + (static_cast<uint64_t>(first + j) + 1) * step) >> 40;
    w[j] *= drawn >= p.dropout.threshold ? p.dropout.scale : 0.0f;
  }
}

}  // namespace
