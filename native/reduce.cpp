#include "reduce.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>

#include "team.h"

namespace eyeline {

namespace {

// How queries are cut into chunks: by the problem alone, never by the number of threads, since a
// chunk adds up what its rows give to each key.
struct Cut {
  const Table& table;
  const Problem& problem;
  const Questions& questions;
  int64_t each;    // queries of a chunk
  int64_t chunks;  // of one key head

  Cut(const Table& table, const Problem& problem, const Questions& questions)
      : table(table), problem(problem), questions(questions) {
    // Few chunks, for each holds a line of sums per head; of many rows, which share packed keys.
    constexpr int64_t most_chunks = 8, fewest_rows = FEWEST_STRIPS * STRIP_ROWS;
    const int64_t group = std::max<int64_t>(problem.group(), 1);
    const int64_t fewest = up(fewest_rows, group);
    each = std::max(up(problem.Tq, most_chunks), fewest);
    chunks = up(problem.Tq, each);
  }

  int64_t heads() const { return problem.N * problem.Hk; }

  // The last queries first: under a causal mask they take longest.
  static void run(const void* self, int64_t number, char* memory, const Watch& watch) {
    const Cut& cut = *static_cast<const Cut*>(self);
    const Problem& p = cut.problem;
    const int64_t chunk = cut.chunks - 1 - number / cut.heads(), at = number % cut.heads();
    const int64_t start = chunk * cut.each, stop = std::min(start + cut.each, p.Tq);
    cut.table.reduce(p, cut.questions, Chunk{at / p.Hk, at % p.Hk, chunk, start, stop}, memory,
                     watch);
  }
};

int64_t partial_size(const Cut& cut, const Question& question) {
  const int64_t heads = cut.chunks * cut.problem.N * cut.problem.Hq;
  if (question.by_key()) return heads * question.count * cut.questions.padded;
  return question.ask == Ask::pool ? heads * question.key_cells : 0;
}

// The sums of one query head's chunks, in the order of the chunks.
void join_keys(const Cut& cut, const Question& question, int64_t head) {
  const Problem& p = cut.problem;
  const int64_t count = question.count, padded = cut.questions.padded;
  float* to = question.values + head * p.Tk * count;
  std::fill(to, to + p.Tk * count, 0.0f);
  for (int64_t chunk = 0; chunk < cut.chunks; ++chunk) {
    const float* from = question.partial + (chunk * p.N * p.Hq + head) * count * padded;
    for (int64_t f = 0; f < count; ++f)
      for (int64_t j = 0; j < p.Tk; ++j) to[j * count + f] += from[f * padded + j];
  }
}

// The cells' means, to which each chunk's first row of cells is added.
void join_pool(const Cut& cut, const Question& question, int64_t head) {
  const Problem& p = cut.problem;
  const int64_t rows = question.row_cells, cells = question.key_cells;
  float* to = question.values + head * rows * cells;
  for (int64_t chunk = 0; chunk < cut.chunks; ++chunk) {
    const int64_t start = chunk * cut.each, stop = std::min(start + cut.each, p.Tq);
    const int64_t first = std::max(start, question.row_edges[0]);
    if (first >= std::min(stop, question.row_edges[rows])) continue;
    const float* from = question.partial + (chunk * p.N * p.Hq + head) * cells;
    float* line = to + cell_of(question.row_edges, rows, first) * cells;
    for (int64_t c = 0; c < cells; ++c) line[c] += from[c];
  }
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < cells; ++c) {
      const int64_t area = (question.row_edges[r + 1] - question.row_edges[r]) *
                           (question.key_edges[c + 1] - question.key_edges[c]);
      to[r * cells + c] /= static_cast<float>(std::max<int64_t>(area, 1));
    }
}

}  // namespace

bool reduce(const Table& table, const Problem& problem, Questions& questions, int threads,
            const Watch& watch) {
  constexpr int64_t line = 64;  // floats: no chunk's sums end within another's cache line
  questions.padded = up(problem.Tk, line) * line;
  const Cut cut(table, problem, questions);
  int64_t size = 0;
  for (const Question& question : questions) size += partial_size(cut, question);
  const std::unique_ptr<float[]> partial(new (std::nothrow) float[std::max<int64_t>(size, 1)]);
  if (!partial) return false;
  if (poisoned()) std::memset(partial.get(), 0xff, static_cast<size_t>(size) * sizeof(float));
  float* next = partial.get();
  for (Question& question : questions) {
    question.partial = next;
    next += partial_size(cut, question);
  }
  const Work work{cut.chunks * cut.heads(), table.reduce_memory(problem), Cut::run, &cut};
  if (!share(work, threads, watch)) return false;
  if (watch.stop()) return true;
  for (const Question& question : questions)
    for (int64_t head = 0; head < problem.N * problem.Hq; ++head) {
      if (question.by_key()) join_keys(cut, question, head);
      if (question.ask == Ask::pool) join_pool(cut, question, head);
    }
  return true;
}

}  // namespace eyeline
