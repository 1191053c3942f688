// Attention by its formula, a row at a time, in the arithmetic of `Real`: double is the definition,
// float what plain float32 makes of it, the yardstick of every error.
#pragma once
#include <cmath>
#include <vector>

#include "../problem.h"
#include "numbers.h"

namespace eyeline {

inline bool may_see(const Problem& p, int64_t n, int64_t h, int64_t i, int64_t j) {
  const Visible& v = p.visible;
  bool within = !v.starts;
  for (int64_t a = 0; a < v.intervals; ++a)
    within |= *v.starts.at<int64_t>(n, h, i, a) <= j && j < *v.stops.at<int64_t>(n, h, i, a);
  return within && (!v.keep || *v.keep.at<uint8_t>(n, h, j)) &&
         (!v.q_ids || *v.q_ids.at<int64_t>(n, h, i) == *v.k_ids.at<int64_t>(n, h, j)) &&
         (!v.dense || *v.dense.at<uint8_t>(n, h, i, j));
}

// The factor of dropout: 0, or the scale of what stays. splitmix64, keyed by the place.
inline float kept(const Problem& p, int64_t n, int64_t h, int64_t i, int64_t j) {
  if (!p.dropout.here) return 1.0f;
  uint64_t x = p.dropout.seed;
  for (const int64_t index : {n, h, i, j}) {
    x += (static_cast<uint64_t>(index) + 1) * 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    x ^= x >> 31;
  }
  return (x >> 40) >= p.dropout.threshold ? p.dropout.scale : 0.0f;
}

// The tensor's entries, side by side.
template <class Real>
std::vector<Real> entries(const View& view, Number number, int64_t a, int64_t b, int64_t c,
                          int64_t d) {
  std::vector<Real> found;
  found.reserve(static_cast<size_t>(a * b * c * d));
  const int64_t bytes = bytes_of(number);
  for (int64_t i = 0; i < a; ++i)
    for (int64_t j = 0; j < b; ++j)
      for (int64_t k = 0; k < c; ++k)
        for (int64_t l = 0; l < d; ++l)
          found.push_back(static_cast<Real>(
              read(number, view.data + bytes * (i * view.stride[0] + j * view.stride[1] +
                                                k * view.stride[2] + l * view.stride[3]))));
  return found;
}

// The logsumexp of a row's state. An infinite score has made l NaN.
inline double lse_of(float m, float l) {
  const double most = static_cast<double>(m);
  return m == INFINITY ? most : most + std::log(static_cast<double>(l));
}

// A row of the weights.
template <class Real>
struct Line {
  std::vector<bool> seen;     // [Tk]
  std::vector<Real> scores;   // [Tk], with biases, -inf where nothing is seen
  std::vector<Real> weights;  // [Tk], 0 where nothing is seen, before dropout
  Real lse = 0;
};

// Of q, k and v, as they lie; and Σ P ∘ G of each row, less what arrives at lse.
template <class Real>
struct Gradients {
  std::vector<Real> dq, dk, dv, inner;
  double added = 0.0;  // the largest number that went into a sum for dq or dk, if none cancelled
};

template <class Real>
class Definition {
 public:
  explicit Definition(const Problem& problem)
      : p(problem),
        q(entries<Real>(p.q, p.number, p.N, p.Hq, p.Tq, p.D)),
        k(entries<Real>(p.k, p.number, p.N, p.Hk, p.Tk, p.D)),
        v(entries<Real>(p.v, p.number, p.N, p.Hk, p.Tk, p.Dv)) {}

  // Query i of head h: scale, softcap, biases, mask, softmax with the sink.
  Line<Real> line(int64_t n, int64_t h, int64_t i) const {
    Line<Real> made;
    std::vector<Real>& scores = made.scores;
    scores.resize(static_cast<size_t>(p.Tk));
    const Real sink = p.sinks ? *p.sinks.at<float>(n, h) : hidden;
    Real largest = sink;
    for (int64_t j = 0; j < p.Tk; ++j) {
      const Real bias = biases(n, h, i, j);
      made.seen.push_back(may_see(p, n, h, i, j) && bias != hidden);
      scores[j] = made.seen[j] ? score(n, h, i, j) + bias : hidden;
      if (scores[j] > largest) largest = scores[j];
    }
    if (largest == hidden) largest = 0;
    Real total = std::exp(sink - largest);
    for (int64_t j = 0; j < p.Tk; ++j) {
      made.weights.push_back(made.seen[j] ? std::exp(scores[j] - largest) : 0);
      total += made.weights[j];
    }
    made.lse = total == 0 ? hidden : largest == -hidden ? largest : largest + std::log(total);
    for (Real& weight : made.weights) weight /= total == 0 ? 1 : total;
    return made;
  }

  // [N, Hq, Tq], side by side.
  std::vector<Line<Real>> lines() const {
    std::vector<Line<Real>> made;
    for (int64_t n = 0; n < p.N; ++n)
      for (int64_t h = 0; h < p.Hq; ++h)
        for (int64_t i = 0; i < p.Tq; ++i) made.push_back(line(n, h, i));
    return made;
  }

  // out [N, Hq, Tq, Dv] and lse [N, Hq, Tq].
  void forward(std::vector<Real>& out, std::vector<Real>& lse) const {
    for (int64_t n = 0; n < p.N; ++n)
      for (int64_t h = 0; h < p.Hq; ++h)
        for (int64_t i = 0; i < p.Tq; ++i) {
          const Line<Real> row = line(n, h, i);
          std::vector<Real> sum(static_cast<size_t>(p.Dv));
          for (int64_t j = 0; j < p.Tk; ++j) {
            if (!row.seen[j]) continue;
            const Real weight = row.weights[j] * kept(p, n, h, i, j);
            const Real* value = v.data() + key(n, h, j) * p.Dv;
            for (int64_t d = 0; d < p.Dv; ++d) sum[d] += weight * value[d];
          }
          out.insert(out.end(), sum.begin(), sum.end());
          lse.push_back(row.lse);
        }
  }

  // Gradients for dout [N, Hq, Tq, Dv] at out and dlse [N, Hq, Tq] at lse. `out` is what the forward
  // pass made, rounded as it is: Σ P ∘ G of a row is dout · out.
  Gradients<Real> backward(const std::vector<Real>& out, const std::vector<Real>& dout,
                           const std::vector<Real>& dlse) const {
    Gradients<Real> made{std::vector<Real>(q.size()), std::vector<Real>(k.size()),
                         std::vector<Real>(v.size()), {}};
    for (int64_t n = 0; n < p.N; ++n)
      for (int64_t h = 0; h < p.Hq; ++h)
        for (int64_t i = 0; i < p.Tq; ++i) {
          const int64_t row = (n * p.Hq + h) * p.Tq + i;
          add_row(n, h, i, out.data() + row * p.Dv, dout.data() + row * p.Dv, dlse[row], made);
        }
    return made;
  }

  // The largest finite magnitude of q·k · scale, capped.
  double largest_score() const {
    double largest = 0.0;
    for (int64_t n = 0; n < p.N; ++n)
      for (int64_t h = 0; h < p.Hq; ++h)
        for (int64_t i = 0; i < p.Tq; ++i)
          for (int64_t j = 0; j < p.Tk; ++j) {
            const double size = std::abs(static_cast<double>(score(n, h, i, j)));
            if (std::isfinite(size)) largest = std::fmax(largest, size);
          }
    return largest;
  }

 private:
  void add_row(int64_t n, int64_t h, int64_t i, const Real* out, const Real* dout, Real dlse,
               Gradients<Real>& made) const {
    const Line<Real> row = line(n, h, i);
    const int64_t at = ((n * p.Hq + h) * p.Tq + i) * p.D;
    Real inner = -dlse, size = std::abs(dlse);
    for (int64_t d = 0; d < p.Dv; ++d) {
      inner += dout[d] * out[d];
      size += std::abs(dout[d] * out[d]);
    }
    made.inner.push_back(inner);
    for (int64_t j = 0; j < p.Tk; ++j) {
      if (!row.seen[j]) continue;
      const int64_t here = key(n, h, j);
      const Real keep = kept(p, n, h, i, j);
      Real arrived = 0;
      for (int64_t d = 0; d < p.Dv; ++d) {
        arrived += dout[d] * v[here * p.Dv + d];
        made.dv[here * p.Dv + d] += row.weights[j] * keep * dout[d];
      }
      Real slope = row.weights[j] * (arrived * keep - inner) * p.scale;
      if (p.softcap > 0) {
        const Real capped = score(n, h, i, j) / p.softcap;
        slope *= 1 - capped * capped;
      }
      for (int64_t d = 0; d < p.D; ++d) {
        const Real operand = std::fmax(std::abs(k[here * p.D + d]), std::abs(q[at + d]));
        const Real term = row.weights[j] * size * std::abs(p.scale) * operand;
        if (std::isfinite(term)) made.added = std::fmax(made.added, static_cast<double>(term));
        made.dq[at + d] += slope * k[here * p.D + d];
        made.dk[here * p.D + d] += slope * q[at + d];
      }
    }
  }

  static constexpr Real hidden = -INFINITY;

  // Query head h reads key head h / group.
  int64_t key(int64_t n, int64_t h, int64_t j) const {
    return (n * p.Hk + h / p.group()) * p.Tk + j;
  }

  Real score(int64_t n, int64_t h, int64_t i, int64_t j) const {
    const Real* a = q.data() + ((n * p.Hq + h) * p.Tq + i) * p.D;
    const Real* b = k.data() + key(n, h, j) * p.D;
    Real sum = 0;
    for (int64_t d = 0; d < p.D; ++d) sum += a[d] * b[d];
    sum *= p.scale;
    return p.softcap > 0 ? p.softcap * std::tanh(sum / p.softcap) : sum;
  }

  Real biases(int64_t n, int64_t h, int64_t i, int64_t j) const {
    Real sum = p.bias ? *p.bias.at<float>(n, h, i, j) : 0;
    if (p.relative) sum += *p.relative.at<float>(n, h, j - p.position(i) + p.origin);
    return sum;
  }

  const Problem& p;
  std::vector<Real> q, k, v;
};

}  // namespace eyeline
