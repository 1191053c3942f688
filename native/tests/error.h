// How close is close: a multiple of what plain float32 gets wrong on the same problem.
#pragma once
#include <cmath>
#include <string>
#include <vector>

#include "check.h"
#include "numbers.h"

namespace eyeline {

// The same numbers, NaN counting as itself.
inline bool same(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i)
    if (a[i] != b[i] && !(std::isnan(a[i]) && std::isnan(b[i]))) return false;
  return true;
}

// `found` is as near to `exact` as `plain` is, within the multiple, and rounded to `number`; what is
// not finite is the same. `score` is the largest score: its rounding moves weights by so much.
// What cancelled to nothing keeps the roundings of what was added up: `beside`.
inline void compare(Findings& findings, const std::vector<double>& found,
                    const std::vector<double>& exact, const std::vector<float>& plain,
                    Number number, double score, const std::string& what,
                    double beside = 0.0) {
  constexpr double multiple = 4.0;  // of plain float32's own error
  const double roundings = multiple * (4.0 + score);  // where plain float32 happens to be exact
  double error = 0.0, yardstick = 0.0, largest = beside;
  findings.expect(found.size() == exact.size(), what + ": its size");
  for (size_t i = 0; i < exact.size(); ++i) {
    if (!std::isfinite(exact[i])) {
      const bool kept = std::isnan(exact[i]) ? std::isnan(found[i]) : found[i] == exact[i];
      if (!kept) error = INFINITY;
      continue;
    }
    const double off = std::abs(found[i] - exact[i]);
    error = off <= error ? error : off;  // NaN is taken
    yardstick = std::fmax(yardstick, std::abs(static_cast<double>(plain[i]) - exact[i]));
    largest = std::fmax(largest, std::abs(exact[i]));
  }
  const double floats = multiple * yardstick + roundings * rounding(Number::float32) * largest;
  const double types = number == Number::float32 ? 0.0 : 1.01 * rounding(number) * largest;
  findings.compare(error, floats + types + smallest(number), what);
}

}  // namespace eyeline
