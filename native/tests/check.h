// What is checked of every table. A check is one object in a file of its own:
//
//   const Check here("forward", [](const Table& table, Findings& findings) { ... });
#pragma once
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "../table.h"

namespace eyeline {

// What one check found of one table.
struct Findings {
  int64_t problems = 300;          // how many to draw
  double worst = 0.0;              // the largest error, in units of what is allowed
  int64_t done = 0;
  std::vector<std::string> wrong;  // a line each

  // One comparison: an error, and what it may be at most. NaN is an error without limit.
  void compare(double error, double allowed, const std::string& what) {
    const double part = error == 0.0 ? 0.0 : error / allowed;
    if (!(part <= worst)) worst = part;
    if (part <= 1.0) return;
    char figures[80];
    std::snprintf(figures, sizeof figures, ": off by %.3g, allowed is %.3g", error, allowed);
    wrong.push_back(what + figures);
  }

  void expect(bool holds, const std::string& what) {
    if (!holds) wrong.push_back(what);
  }
};

struct Check {
  using Run = void (*)(const Table& table, Findings& findings);
  const char* name;
  Run run;

  Check(const char* name, Run run) : name(name), run(run) { all().push_back(this); }

  static std::vector<const Check*>& all() {
    static std::vector<const Check*> checks;
    return checks;
  }
};

}  // namespace eyeline
