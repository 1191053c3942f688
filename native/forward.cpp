#include "forward.h"

#include "team.h"

namespace eyeline {

namespace {

// How the rows are cut into parts. A row's result does not depend on it.
struct Cut {
  const Table& table;
  const Problem& problem;
  int64_t rows;   // of one key head
  int64_t each;   // rows of a part
  int64_t parts;  // of one key head

  Cut(const Table& table, const Problem& problem, int threads)
      : table(table), problem(problem), rows(problem.Tq * problem.group()) {
    // Long parts share packed keys among many rows; several parts per thread keep all busy.
    constexpr int64_t parts_per_thread = 4, fewest_rows = 48;
    const int64_t heads = problem.N * problem.Hk;
    each = table.part_rows;
    while (each > fewest_rows && threads > 1 &&
           heads * ((rows + each - 1) / each) < parts_per_thread * threads)
      each /= 2;
    parts = (rows + each - 1) / each;
  }

  // The last rows first: under a causal mask they take longest.
  static void run(const void* self, int64_t number, char* memory, const Watch& watch) {
    const Cut& cut = *static_cast<const Cut*>(self);
    const Problem& p = cut.problem;
    const int64_t heads = p.N * p.Hk;
    const int64_t part = cut.parts - 1 - number / heads, at = number % heads;
    const int64_t start = part * cut.each;
    const int64_t stop = start + cut.each < cut.rows ? start + cut.each : cut.rows;
    cut.table.forward(p, Part{at / p.Hk, at % p.Hk, start, stop}, memory, watch);
  }
};

}  // namespace

bool forward(const Table& table, const Problem& problem, int threads, const Watch& watch) {
  if (problem.N * problem.Hq * problem.Tq == 0) return true;
  const Cut cut(table, problem, threads);
  const Work work{cut.parts * problem.N * problem.Hk, table.memory(problem), Cut::run, &cut};
  return share(work, threads, watch);
}

}  // namespace eyeline
