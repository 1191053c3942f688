#include "backward.h"

#include <algorithm>

#include "team.h"

namespace eyeline {

namespace {

int64_t up(int64_t n, int64_t unit) { return (n + unit - 1) / unit; }

// The weights of a key head, cut into pieces × pieces cells. In each of as many steps every row and
// every key is in one cell, so that cells add to the gradients side by side, always in one order.
struct Grid {
  const Table& table;
  const Problem& problem;
  const Slopes& slopes;
  int64_t rows;        // of one key head
  int64_t pieces;
  int64_t row_piece, key_piece;
  int64_t step = 0;

  Grid(const Table& table, const Problem& problem, const Slopes& slopes)
      : table(table), problem(problem), slopes(slopes), rows(problem.Tq * problem.group()) {
    // Many cells where each is long enough to pay for packing its operands, some in any case. The
    // problem decides and not the number of threads: sums are added up in the order of the steps.
    pieces = std::max({int64_t{1}, enough(64, 1024), enough(4, table.key_block)});
    row_piece = up(rows, pieces);
    key_piece = up(up(problem.Tk, pieces), table.key_block) * table.key_block;
  }

  // Pieces that make about `cells` cells in a step, none shorter than `shortest`.
  int64_t enough(int64_t cells, int64_t shortest) const {
    const int64_t heads = problem.N * problem.Hk;
    return std::min({up(cells, heads), problem.Tk / shortest, rows / shortest});
  }

  static void run(const void* self, int64_t number, char* memory, const Watch& watch) {
    const Grid& grid = *static_cast<const Grid*>(self);
    const Problem& p = grid.problem;
    const int64_t head = number / grid.pieces, piece = number % grid.pieces;
    const int64_t row = (piece + grid.step) % grid.pieces * grid.row_piece;
    const int64_t key = piece * grid.key_piece;
    const Cell cell{head / p.Hk, head % p.Hk, row, std::min(row + grid.row_piece, grid.rows),
                    key, std::min(key + grid.key_piece, p.Tk)};
    grid.table.backward(p, grid.slopes, cell, memory, watch);
  }
};

}  // namespace

bool backward(const Table& table, const Problem& problem, const Slopes& slopes, int threads,
              const Watch& watch) {
  Grid grid(table, problem, slopes);
  const Work work{problem.N * problem.Hk * grid.pieces, table.backward_memory(problem), Grid::run,
                  &grid};
  bool done = true;
  for (; done && grid.step < grid.pieces && !watch.stop(); ++grid.step)
    done = share(work, threads, watch);
  return done;
}

}  // namespace eyeline
