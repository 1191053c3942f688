// Gradients of q, k and v against the definition, on one thread and on three.
#include "../backward.h"

#include <cmath>
#include <cstring>

#include "../forward.h"
#include "check.h"
#include "definition.h"
#include "error.h"
#include "problems.h"

namespace eyeline {

namespace {

// What arrives at a problem's results, after its forward pass.
struct Arrived {
  Slopes slopes;
  std::vector<double> out, dout, dlse;

  Arrived(const Table& table, Drawn& drawn) {
    Problem& p = drawn.problem;
    const Sizes rows{p.N, p.Hq, p.Tq};
    p.out = drawn.result({p.N, p.Hq, p.Tq, p.Dv}, bytes_of(p.number));
    for (float** place : {&p.lse, &p.m, &p.l}) *place = drawn.result(rows, 4).at<float>(0);
    forward(table, p, 1, Watch{});
    slopes.dout = drawn.operand({p.N, p.Hq, p.Tq, p.Dv});
    float* at_lse = drawn.result(rows, 4).at<float>(0);
    const bool more = drawn.random().chance(0.5);
    for (int64_t row = 0; row < p.N * p.Hq * p.Tq; ++row) {
      at_lse[row] = more ? static_cast<float>(drawn.random().normal()) : 0.0f;
      dlse.push_back(static_cast<double>(at_lse[row]));
    }
    slopes.dlse = more ? at_lse : nullptr;
    out = entries<double>(p.out, p.number, p.N, p.Hq, p.Tq, p.Dv);
    dout = entries<double>(slopes.dout, p.number, p.N, p.Hq, p.Tq, p.Dv);
  }

  template <class Real>
  Gradients<Real> exact(const Problem& p) const {
    const auto as = [](const std::vector<double>& x) { return std::vector<Real>(x.begin(), x.end()); };
    return Definition<Real>(p).backward(as(out), as(dout), as(dlse));
  }
};

// Which number that is not finite comes of many sums is left open.
template <class Real>
std::vector<Real> finite_or_nan(std::vector<Real> x) {
  for (Real& entry : x)
    if (!std::isfinite(entry)) entry = NAN;
  return x;
}

void compare_all(const Table& table, Drawn& drawn, const std::string& what, Findings& findings) {
  const Problem& p = drawn.problem;
  const Arrived arrived(table, drawn);
  const auto exact = arrived.exact<double>(p);
  const auto plain = arrived.exact<float>(p);
  const double score = Definition<double>(p).largest_score();
  const int64_t asked = 1 + drawn.random().below(7);  // some of dq, dk, dv
  struct Wanted {
    const char* name;
    float* Slopes::*place;
    const std::vector<double>& exact;
    const std::vector<float>& plain;
  };
  const Wanted all[] = {{" dq", &Slopes::dq, exact.dq, plain.dq},
                        {" dk", &Slopes::dk, exact.dk, plain.dk},
                        {" dv", &Slopes::dv, exact.dv, plain.dv}};
  Slopes alone = arrived.slopes, shared = arrived.slopes;
  for (int i = 0; i < 3; ++i)
    for (Slopes* slopes : {&alone, &shared})
      if (asked >> i & 1) {
        const auto size = static_cast<int64_t>(all[i].exact.size());
        slopes->*all[i].place = drawn.result({size}, 4).at<float>(0);
      }
  findings.expect(backward(table, p, alone, 1, Watch{}) && backward(table, p, shared, 3, Watch{}),
                  what + ": there was no memory");
  for (const auto& [name, place, exactly, plainly] : all) {
    if (!(alone.*place)) continue;
    const std::vector<double> found(alone.*place, alone.*place + exactly.size());
    const std::vector<double> again(shared.*place, shared.*place + exactly.size());
    compare(findings, finite_or_nan(found), finite_or_nan(exactly), plainly, Number::float32, score,
            what + name, place == &Slopes::dv ? 0.0 : exact.added);
    findings.expect(same(found, again), what + name + ": threads move a bit");
  }
}

const Check check("backward", [](const Table& table, Findings& findings) {
  for (int64_t seed = 0; seed < findings.problems; ++seed) {
    Drawn drawn(static_cast<uint64_t>(seed));
    if (drawn.problem.Tq * drawn.problem.Tk == 0) continue;
    compare_all(table, drawn, std::to_string(seed) + ": " + drawn.words, findings);
    ++findings.done;
  }
});

}  // namespace

}  // namespace eyeline
