// Every reading against the definition, all in one pass: on one thread and on three, by the state
// that the forward pass left and by one that is found.
#include "../reduce.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "../forward.h"
#include "check.h"
#include "error.h"
#include "problems.h"
#include "readings.h"

namespace eyeline {

namespace {

constexpr int kinds = 10;
const char* const names[kinds] = {" state",   " lse",  " entropy", " largest", " top",
                             " columns", " seen", " pool",    " diagonal", " entries"};

// One question of each kind, and where the answers go.
class Asked {
 public:
  explicit Asked(Drawn& drawn) : drawn_(drawn), p_(drawn.problem) {
    const int64_t counts[] = {1, 2, 3, 8, 40};
    for (int kind = 0; kind < kinds; ++kind) each_[kind].ask = static_cast<Ask>(kind);
    one(Ask::top).count = drawn.random().one_of(counts);
    one(Ask::columns).count = 1 + drawn.random().below(3);
    one(Ask::diagonal).offset = drawn.random().below(7) - 3;
    factor(one(Ask::columns));
    Question& entries = one(Ask::entries);
    entries.offset = drawn.random().below(p_.Tk + 1);
    entries.count = drawn.random().below(p_.Tk - entries.offset + 1);
    Question& pool = one(Ask::pool);
    pool.row_cells = 1 + drawn.random().below(7), pool.key_cells = 1 + drawn.random().below(7);
    pool.row_edges = edges(pool.row_cells, p_.Tq);
    pool.key_edges = edges(pool.key_cells, p_.Tk);
  }

  // Answers the questions, or the last one alone; false where there was no memory.
  bool run(const Table& table, const float* m, const float* l, int threads, bool alone = false) {
    for (Question& question : each_) {
      const Sizes sizes{p_.N, p_.Hq, size_of(question)};
      question.values = result(sizes);
      question.more = question.ask == Ask::state ? result(sizes) : nullptr;
      question.keys = drawn_.result(sizes, 8).at<int64_t>(0);
      const bool begins_with_0 = question.ask == Ask::pool || question.ask == Ask::diagonal;
      if (begins_with_0) std::memset(question.values, 0, 4 * length(question));
    }
    Questions questions{alone ? each_ + kinds - 1 : each_, alone ? 1 : kinds, m, l};
    return reduce(table, p_, questions, threads, Watch{});
  }

  std::vector<double> values(const Question& question) const {
    std::vector<double> found(question.values, question.values + length(question));
    for (size_t row = 0; question.ask == Ask::state && row < found.size(); ++row)
      found[row] = lse_of(question.values[row], question.more[row]);
    return found;
  }

  // Everything that was answered, bit by bit.
  std::vector<double> all() const {
    std::vector<double> found;
    for (const Question& question : each_) {
      const size_t count = length(question);
      found.insert(found.end(), question.values, question.values + count);
      if (question.ask == Ask::state)
        found.insert(found.end(), question.more, question.more + count);
      if (names_keys(question)) found.insert(found.end(), question.keys, question.keys + count);
    }
    return found;
  }

  static bool names_keys(const Question& question) {
    return question.ask == Ask::largest || question.ask == Ask::top;
  }

  const Question* begin() const { return each_; }
  const Question* end() const { return each_ + kinds; }

 private:
  Question& one(Ask ask) { return each_[static_cast<int>(ask)]; }

  int64_t size_of(const Question& question) const {
    if (question.by_key()) return p_.Tk * question.count;
    if (question.ask == Ask::pool) return question.row_cells * question.key_cells;
    return p_.Tq * question.count;
  }

  size_t length(const Question& question) const {
    return static_cast<size_t>(p_.N * p_.Hq * size_of(question));
  }

  float* result(const Sizes& sizes) { return drawn_.result(sizes, 4).at<float>(0); }

  void factor(Question& question) {
    const Sizes sizes{p_.N, p_.Hq, p_.Tq, question.count};
    question.factor = drawn_.result(sizes, 4);
    for (int64_t at = 0; at < p_.N * p_.Hq * p_.Tq * question.count; ++at)
      question.factor.at<float>(0)[at] = static_cast<float>(drawn_.random().normal());
    if (drawn_.random().chance(0.5)) question.factor.stride[1] = 0;  // one for all heads
  }

  // Sorted places in 0..size; cells may be empty, and need not cover everything.
  const int64_t* edges(int64_t cells, int64_t size) {
    int64_t* const at = drawn_.result({cells + 1}, 8).at<int64_t>(0);
    for (int64_t e = 0; e <= cells; ++e) at[e] = drawn_.random().below(size + 1);
    std::sort(at, at + cells + 1);
    return at;
  }

  Drawn& drawn_;
  const Problem& p_;
  Question each_[kinds];
};

void compare_all(const Table& table, Drawn& drawn, const std::string& what, Findings& findings) {
  Problem& p = drawn.problem;
  p.out = drawn.result({p.N, p.Hq, p.Tq, p.Dv}, bytes_of(p.number));
  for (float** place : {&p.lse, &p.m, &p.l})
    *place = drawn.result({p.N, p.Hq, p.Tq}, 4).at<float>(0);
  Asked asked(drawn);
  findings.expect(forward(table, p, 1, Watch{}) && asked.run(table, p.m, p.l, 3),
                  what + ": there was no memory");
  const std::vector<double> known = asked.all();
  findings.expect(asked.run(table, nullptr, nullptr, 1), what + ": there was no memory");
  findings.expect(same(known, asked.all()), what + ": threads or a known state move a bit");
  const Definition<double> definition(p);
  const auto lines = definition.lines();
  const auto plain_lines = Definition<float>(p).lines();
  const Readings<double> exact(p, lines);
  const Readings<float> plain(p, plain_lines);
  const double score = definition.largest_score();
  for (const Question& question : asked) {
    const std::string name = what + names[static_cast<int>(question.ask)];
    const auto exactly = exact.values(question);
    const auto plainly = plain.values(question);
    // An entropy near 0 is a difference of two logarithms, which keep their roundings.
    const double beside = question.ask == Ask::entropy ? 1.0 : 0.0;
    compare(findings, asked.values(question), exactly, plainly, Number::float32, score, name,
            beside);
    if (question.ask == Ask::entries) {  // alone, keys of few rows are read where they lie
      findings.expect(asked.run(table, p.m, p.l, 3, true), name + ": there was no memory");
      compare(findings, asked.values(question), exactly, plainly, Number::float32, score,
              name + " alone");
    }
    if (!Asked::names_keys(question)) continue;
    compare(findings, exact.named(question), exactly, plainly, Number::float32, score,
            name + "'s keys");
    for (size_t row = 0; question.ask == Ask::top && row < lines.size(); ++row) {
      const int64_t* keys = question.keys + row * static_cast<size_t>(question.count);
      const int64_t* none = std::find(keys, keys + question.count, -1);
      findings.expect(none - keys == exact.nameable(row, question.count),
                      name + ": how many keys are named");
    }
  }
}

const Check check("reduce", [](const Table& table, Findings& findings) {
  for (int64_t seed = 0; seed < findings.problems; ++seed) {
    Drawn drawn(static_cast<uint64_t>(seed));
    compare_all(table, drawn, std::to_string(seed) + ": " + drawn.words, findings);
    ++findings.done;
  }
});

}  // namespace

}  // namespace eyeline
