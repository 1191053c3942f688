// out and the state of every row against the definition, on one thread and on three.
#include "../forward.h"

#include "check.h"
#include "definition.h"
#include "error.h"
#include "problems.h"

namespace eyeline {

namespace {

struct Results {
  std::vector<double> out, lse, from_state;
  bool done;

  Results(const Table& table, Drawn& drawn, int threads) {
    Problem& p = drawn.problem;
    const size_t rows = static_cast<size_t>(p.N * p.Hq * p.Tq);
    p.out = drawn.result({p.N, p.Hq, p.Tq, p.Dv}, bytes_of(p.number));
    for (float** place : {&p.lse, &p.m, &p.l})
      *place = drawn.result({p.N, p.Hq, p.Tq}, 4).at<float>(0);
    done = forward(table, p, threads, Watch{});
    out = entries<double>(p.out, p.number, p.N, p.Hq, p.Tq, p.Dv);
    lse.assign(p.lse, p.lse + rows);
    for (size_t row = 0; row < rows; ++row) from_state.push_back(lse_of(p.m[row], p.l[row]));
  }
};

const Check check("forward", [](const Table& table, Findings& findings) {
  for (int64_t seed = 0; seed < findings.problems; ++seed) {
    Drawn drawn(static_cast<uint64_t>(seed));
    const Problem& p = drawn.problem;
    const std::string what = std::to_string(seed) + ": " + drawn.words;
    const Results alone(table, drawn, 1), shared(table, drawn, 3);
    findings.expect(alone.done && shared.done, what + ": there was no memory");
    std::vector<double> exact[2];
    std::vector<float> plain[2];
    const Definition<double> definition(p);
    definition.forward(exact[0], exact[1]);
    Definition<float>(p).forward(plain[0], plain[1]);
    const double score = definition.largest_score();
    compare(findings, alone.out, exact[0], plain[0], p.number, score, what + " out");
    compare(findings, alone.lse, exact[1], plain[1], Number::float32, score, what + " lse");
    compare(findings, alone.from_state, exact[1], plain[1], Number::float32, score, what + " m, l");
    findings.expect(same(alone.out, shared.out) && same(alone.lse, shared.lse),
                    what + ": threads move a bit");
    ++findings.done;
  }
});

}  // namespace

}  // namespace eyeline
