// What can be asked of the weights in one pass over them.
#pragma once
#include "problem.h"

namespace eyeline {

// The numbers are those of eyeline/backends/questions.py.
enum class Ask : int {
  state = 0,      // values m, more l [N, Hq, Tq]: e^(score - m) / l is a weight
  lse = 1,        // values [N, Hq, Tq]
  entropy = 2,    // values [N, Hq, Tq], in nats
  largest = 3,    // values, keys [N, Hq, Tq]: the largest score and the first key that has it
  top = 4,        // values, keys [N, Hq, Tq, count]: the largest weights, the first of equals first
  columns = 5,    // values [N, Hq, Tk, count]: Wᵀ factor
  seen = 6,       // values [N, Hq, Tk, 1]: how many queries may see each key
  pool = 7,       // values [N, Hq, row cells, key cells], 0 before: means
  diagonal = 8,   // values [N, Hq, Tq], 0 before: the weight `offset` after each query's position
  entries = 9,    // values [N, Hq, Tq, count]: the weights themselves, of the keys from `offset` on
};

// Results are contiguous. [first edge of a cell, first edge of the next) are its rows or keys.
struct Question {
  Ask ask = Ask::state;
  int64_t count = 1;
  int64_t offset = 0;
  float* values = nullptr;
  float* more = nullptr;
  int64_t* keys = nullptr;
  View factor;  // float [N, Hq, Tq, count]
  const int64_t* row_edges = nullptr;
  const int64_t* key_edges = nullptr;
  int64_t row_cells = 0, key_cells = 0;

  // What each chunk of rows adds up for itself, so that no result depends on threads. columns and
  // seen: [chunks, N, Hq, count, padded]; pool: [chunks, N, Hq, key cells] of a chunk's first cell
  // row, which may have begun in the chunk before.
  float* partial = nullptr;

  bool by_key() const { return ask == Ask::columns || ask == Ask::seen; }
};

// The cell of an index between first and last edge.
static inline int64_t cell_of(const int64_t* edges, int64_t cells, int64_t index) {
  int64_t low = 0, high = cells;  // edges[low] <= index < edges[high]
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    (edges[middle] <= index ? low : high) = middle;
  }
  return low;
}

struct Questions {
  Question* first = nullptr;
  int64_t count = 0;
  const float* m = nullptr;  // [N, Hq, Tq] the rows' state, where it is known
  const float* l = nullptr;
  int64_t padded = 0;        // keys of a line of partial sums

  Question* begin() const { return first; }
  Question* end() const { return first + count; }
};

// Some queries of one key head, with all query heads that read it.
struct Chunk {
  int64_t n, head, number, start, stop;
};

}  // namespace eyeline
