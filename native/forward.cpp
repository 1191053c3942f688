#include "forward.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>

#include "team.h"

namespace eyeline {

namespace {

// How the work is cut into parts. A row's result does not depend on how the rows are cut, nor on
// the number of threads.
struct Cut {
  const Table& table;
  const Problem& problem;
  int64_t heads;  // key heads of the whole batch
  int64_t rows;   // of one key head
  int64_t each;   // rows of a part
  int64_t parts;  // of one key head
  int64_t keys;   // of a part
  int64_t splits = 1;  // parts that share the same rows, with other keys each
  float* partials = nullptr;  // [heads, splits, rows, Dv + 2]

  Cut(const Table& table, const Problem& problem, int threads)
      : table(table),
        problem(problem),
        heads(problem.N * problem.Hk),
        rows(problem.Tq * problem.group()),
        keys(problem.Tk) {
    // Long parts share packed keys among many rows. As many for each thread, of one length: rows
    // that see the same are done at once; where they do not, several parts per thread even it out.
    const int64_t wanted = problem.visible.everything() ? threads : 4 * threads, many = 4 * wanted;
    parts = up(rows, problem.blocks.strips * STRIP_ROWS);
    if (threads > 1)
      while (parts < up(rows, FEW_ROWS) && heads * parts < many &&
             (heads * parts < wanted || heads * parts % threads != 0))
        ++parts;
    each = up(up(rows, parts), STRIP_ROWS) * STRIP_ROWS;
    parts = up(rows, each);
    // Few rows of few heads: keys are shared out, by the problem's sizes alone.
    constexpr int64_t enough = 64, fewest_keys = 2048;
    if (rows > FEW_ROWS || 2 * heads > enough || keys < 2 * fewest_keys) return;
    const int64_t most = enough / heads < keys / fewest_keys ? enough / heads : keys / fewest_keys;
    keys = up(keys / most, fewest_keys) * fewest_keys;
    splits = up(problem.Tk, keys);
  }

  // Of part `number`, its rows. The last rows come first: under a causal mask they take longest.
  Part part(int64_t number) const {
    const int64_t start = (parts - 1 - number / heads) * each, at = number % heads;
    const int64_t stop = start + each < rows ? start + each : rows;
    return {at / problem.Hk, at % problem.Hk, start, stop, 0, problem.Tk, nullptr};
  }

  int64_t partial_size() const { return rows * (problem.Dv + 2); }

  static void run(const void* self, int64_t number, char* memory, const Watch& watch) {
    const Cut& cut = *static_cast<const Cut*>(self);
    Part part = cut.part(number / cut.splits);
    if (cut.splits > 1) {
      part.key_start = number % cut.splits * cut.keys;
      if (part.key_start + cut.keys < part.key_stop) part.key_stop = part.key_start + cut.keys;
      part.partial = cut.partials + number * cut.partial_size();
    }
    cut.table.forward(cut.problem, part, memory, watch);
  }

  static void join(const void* self, int64_t number, char* memory, const Watch&) {
    const Cut& cut = *static_cast<const Cut*>(self);
    const float* partials = cut.partials + number * cut.splits * cut.partial_size();
    cut.table.join(cut.problem, cut.part(number), partials, cut.splits, memory);
  }
};

}  // namespace

bool forward(const Table& table, const Problem& problem, int threads, const Watch& watch) {
  if (problem.N * problem.Hq * problem.Tq == 0) return true;
  Cut cut(table, problem, threads);
  const int64_t memory = table.memory(problem), rows = cut.parts * cut.heads;
  if (cut.splits == 1) return share({rows, memory, Cut::run, &cut}, threads, watch);
  const int64_t parts = rows * cut.splits, size = parts * cut.partial_size();
  const std::unique_ptr<float[]> partials(new (std::nothrow) float[static_cast<size_t>(size)]);
  if (!partials) return false;
  if (poisoned()) std::memset(partials.get(), 0xff, static_cast<size_t>(size) * sizeof(float));
  cut.partials = partials.get();
  if (!share({parts, memory, Cut::run, &cut}, threads, watch)) return false;
  return share({rows, memory, Cut::join, &cut}, 1, watch);
}

}  // namespace eyeline
