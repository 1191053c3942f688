#include "backward.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <new>
#include <thread>

#include "team.h"

namespace eyeline {

namespace {

using Counts = std::unique_ptr<std::atomic<int64_t>[]>;

// The weights of a key head, cut into pieces × pieces cells. In each of as many steps every row and
// every key is in one cell, and a cell begins when those of the step before that share its rows or
// its keys are done: all gradients are added up in the order of the steps.
struct Grid {
  const Table& table;
  const Problem& problem;
  const Slopes& slopes;
  int64_t rows;        // of one key head
  int64_t pieces;
  int64_t row_piece, key_piece;
  Counts rows_done, keys_done;  // [heads, pieces]: the cells of each that are done

  Grid(const Table& table, const Problem& problem, const Slopes& slopes)
      : table(table), problem(problem), slopes(slopes), rows(problem.Tq * problem.group()) {
    // Many cells where each is long enough to pay for packing its operands, some in any case, and
    // more where some are empty. The problem decides and not the number of threads: it is the order
    // of sums. Keys are cut into the largest blocks that there are, which are whole ones everywhere.
    const int64_t some = problem.visible.everything() ? 4 : 8;
    constexpr int64_t block = MOST_BACKWARD_KEYS;
    pieces = std::max({int64_t{1}, enough(64, 1024), enough(some, block)});
    row_piece = up(rows, pieces);
    key_piece = up(up(problem.Tk, pieces), block) * block;
    rows_done = none_done(), keys_done = none_done();
  }

  int64_t heads() const { return problem.N * problem.Hk; }

  Counts none_done() const {
    return Counts(new (std::nothrow) std::atomic<int64_t>[static_cast<size_t>(heads() * pieces)]());
  }

  // Pieces that make about `cells` cells in a step, none shorter than `shortest`.
  int64_t enough(int64_t cells, int64_t shortest) const {
    return std::min({up(cells, heads()), problem.Tk / shortest, rows / shortest});
  }

  // Gradients of the cell's rows and keys begin at 0. Whoever writes there first does it, since fresh
  // memory costs time.
  void clear(const Cell& cell) const {
    const Problem& p = problem;
    const auto zeros = [](float* to, int64_t lines, int64_t width) {
      std::memset(to, 0, static_cast<size_t>(std::max<int64_t>(lines, 0) * width) * sizeof *to);
    };
    for (int64_t h = 0; slopes.dq && h < p.group(); ++h) {
      const int64_t first = up(cell.row_start - h, p.group());
      zeros(slopes.dq + ((cell.n * p.Hq + cell.head * p.group() + h) * p.Tq + first) * p.D,
            up(cell.row_stop - h, p.group()) - first, p.D);
    }
    const int64_t key = (cell.n * p.Hk + cell.head) * p.Tk + cell.key_start;
    const int64_t keys = cell.key_stop - cell.key_start;
    if (slopes.dk) zeros(slopes.dk + key * p.D, keys, p.D);
    if (slopes.dv) zeros(slopes.dv + key * p.Dv, keys, p.Dv);
  }

  // Cells are begun in the order of their numbers, so that what one waits for is on its way. The last
  // diagonal comes first: under a causal mask it has the fewest cells, and nobody waits at the end.
  static void run(const void* self, int64_t number, char* memory, const Watch& watch) {
    const Grid& grid = *static_cast<const Grid*>(self);
    const Problem& p = grid.problem;
    const int64_t bands = grid.heads() * grid.pieces, band = number % bands, step = number / bands;
    const int64_t head = band / grid.pieces, piece = band % grid.pieces;
    const int64_t row_piece = (piece + grid.pieces - 1 - step) % grid.pieces;
    const int64_t row = std::min(row_piece * grid.row_piece, grid.rows);
    const int64_t key = std::min(piece * grid.key_piece, p.Tk);
    const Cell cell{head / p.Hk, head % p.Hk, row, std::min(row + grid.row_piece, grid.rows),
                    key, std::min(key + grid.key_piece, p.Tk)};
    std::atomic<int64_t>& of_rows = grid.rows_done[head * grid.pieces + row_piece];
    std::atomic<int64_t>& of_keys = grid.keys_done[band];
    while (of_rows < step || of_keys < step) {
      if (watch.stop()) return;
      std::this_thread::yield();
    }
    if (step == 0) grid.clear(cell);
    grid.table.backward(p, grid.slopes, cell, memory, watch);
    ++of_rows, ++of_keys;
  }
};

}  // namespace

bool backward(const Table& table, const Problem& problem, const Slopes& slopes, int threads,
              const Watch& watch) {
  const Grid grid(table, problem, slopes);
  if (!grid.rows_done || !grid.keys_done) return false;
  const int64_t cells = grid.heads() * grid.pieces * grid.pieces;
  return share({cells, table.backward_memory(problem), Grid::run, &grid}, threads, watch);
}

}  // namespace eyeline
