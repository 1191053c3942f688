// What is asked of the weights, by its formula, from rows of the definition.
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "../question.h"
#include "definition.h"

namespace eyeline {

template <class Real>
class Readings {
 public:
  Readings(const Problem& p, const std::vector<Line<Real>>& lines) : p(p), lines(lines) {}

  // The values of a question; of `state`, lse.
  std::vector<Real> values(const Question& asked) const {
    switch (asked.ask) {
      case Ask::columns:
      case Ask::seen: return by_key(asked);
      case Ask::pool: return cells(asked);
      case Ask::top: return largest_weights(asked.count);
      case Ask::entries: return entries(asked);
      default: break;
    }
    std::vector<Real> made;
    for_each_row([&](int64_t, int64_t, int64_t i, const Line<Real>& line) {
      made.push_back(of_row(asked, i, line));
    });
    return made;
  }

  // Scores or weights where the keys of an answer say that they are; without a key, what stands for
  // nothing. Of `top` NaN where a key is hidden or named twice: never an answer.
  std::vector<Real> named(const Question& asked) const {
    std::vector<Real> made;
    const bool top = asked.ask == Ask::top;
    for (size_t row = 0; row < lines.size(); ++row) {
      const int64_t* keys = asked.keys + row * static_cast<size_t>(asked.count);
      for (int64_t a = 0; a < asked.count; ++a) {
        const int64_t j = keys[a];
        const bool again = std::find(keys, keys + a, j) != keys + a;
        if (j < 0)
          made.push_back(top ? 0 : -INFINITY);
        else if (j >= p.Tk || !lines[row].seen[j] || again)
          made.push_back(NAN);
        else
          made.push_back(top ? lines[row].weights[j] : lines[row].scores[j]);
      }
    }
    return made;
  }

  // How many keys an answer of `top` must name in a row.
  int64_t nameable(size_t row, int64_t count) const {
    const auto& seen = lines[row].seen;
    return std::min<int64_t>(std::count(seen.begin(), seen.end(), true), count);
  }

 private:
  template <class Call>
  void for_each_row(const Call& f) const {
    size_t row = 0;
    for (int64_t n = 0; n < p.N; ++n)
      for (int64_t h = 0; h < p.Hq; ++h)
        for (int64_t i = 0; i < p.Tq; ++i, ++row) f(n, h, i, lines[row]);
  }

  Real of_row(const Question& asked, int64_t i, const Line<Real>& line) const {
    if (asked.ask == Ask::state || asked.ask == Ask::lse) return line.lse;
    if (asked.ask == Ask::diagonal) {
      const int64_t j = p.position(i) + asked.offset;
      return j >= 0 && j < p.Tk && line.seen[j] ? line.weights[j] : 0;
    }
    Real largest = -INFINITY, entropy = 0;
    for (int64_t j = 0; j < p.Tk; ++j) {
      if (!line.seen[j]) continue;
      const Real score = line.scores[j], weight = line.weights[j];
      if (std::isnan(score) || score > largest) largest = score;
      if (std::isnan(largest)) break;
      if (weight != 0) entropy -= weight * std::log(weight);
    }
    if (asked.ask == Ask::largest) return largest;
    return std::isnan(largest) ? largest : entropy;
  }

  std::vector<Real> entries(const Question& asked) const {
    std::vector<Real> made;
    for (const Line<Real>& line : lines)
      for (int64_t j = asked.offset; j < asked.offset + asked.count; ++j)
        made.push_back(line.seen[j] ? line.weights[j] : 0);
    return made;
  }

  std::vector<Real> largest_weights(int64_t count) const {
    std::vector<Real> made;
    for (const Line<Real>& line : lines) {
      std::vector<Real> seen(static_cast<size_t>(count));  // 0 where fewer keys are seen
      for (int64_t j = 0; j < p.Tk; ++j)
        if (line.seen[j]) seen.push_back(line.weights[j]);
      // A row of NaN is NaN wherever it sees a key.
      const auto before = [](Real a, Real b) { return std::isnan(a) ? !std::isnan(b) : a > b; };
      std::sort(seen.begin(), seen.end(), before);
      made.insert(made.end(), seen.begin(), seen.begin() + count);
    }
    return made;
  }

  std::vector<Real> by_key(const Question& asked) const {
    std::vector<Real> made(static_cast<size_t>(p.N * p.Hq * p.Tk * asked.count));
    for_each_row([&](int64_t n, int64_t h, int64_t i, const Line<Real>& line) {
      for (int64_t j = 0; j < p.Tk; ++j)
        for (int64_t f = 0; f < asked.count && line.seen[j]; ++f)
          made[((n * p.Hq + h) * p.Tk + j) * asked.count + f] +=
              asked.ask == Ask::seen ? 1 : line.weights[j] * *asked.factor.at<float>(n, h, i, f);
    });
    return made;
  }

  std::vector<Real> cells(const Question& asked) const {
    const int64_t across = asked.key_cells, *rows = asked.row_edges, *keys = asked.key_edges;
    std::vector<Real> made;
    for (int64_t head = 0; head < p.N * p.Hq; ++head)
      for (int64_t r = 0; r < asked.row_cells; ++r)
        for (int64_t c = 0; c < across; ++c) {
          Real sum = 0;
          for (int64_t i = rows[r]; i < rows[r + 1]; ++i) {
            const Line<Real>& line = lines[head * p.Tq + i];
            for (int64_t j = keys[c]; j < keys[c + 1]; ++j)
              if (line.seen[j]) sum += line.weights[j];
          }
          const int64_t area = (rows[r + 1] - rows[r]) * (keys[c + 1] - keys[c]);
          made.push_back(sum / static_cast<Real>(std::max<int64_t>(area, 1)));
        }
    return made;
  }

  const Problem& p;
  const std::vector<Line<Real>>& lines;
};

}  // namespace eyeline
