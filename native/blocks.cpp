#include "blocks.h"

#include <algorithm>

namespace eyeline {

namespace {

constexpr Blocks fewest;

// Floats that are laid out of each key, each score and each row.
struct Floats {
  int64_t key, score, row;
};

Blocks fitting(const Caches& caches, const Floats& each, Blocks made) {
  const int64_t near = caches.level2 / static_cast<int64_t>(sizeof(float));
  while (made.keys > fewest.keys && made.keys * each.key > near) made.keys /= 2;
  const int64_t held = near / 4 / (STRIP_ROWS * made.keys * each.score);
  const int64_t strips = 2 * near / (STRIP_ROWS * each.row);
  made.held = static_cast<int>(std::clamp<int64_t>(held, fewest.held, made.held));
  made.strips = static_cast<int>(std::clamp<int64_t>(strips, fewest.strips, made.strips));
  return made;
}

}  // namespace

Blocks blocks(const Caches& caches, int64_t D, int64_t Dv) {
  const int64_t key = std::max<int64_t>(D, 1);
  return fitting(caches, {2 * key, 1, key + Dv}, {MOST_KEYS, MOST_HELD, 128});
}

// Of a block: keys in two layouts, values, and the gradients of both. Of rows: queries and what
// arrives in two layouts each, and the queries' gradients. Scores lie beside their slopes.
Blocks backward_blocks(const Caches& caches, int64_t D) {
  const int64_t all = 5 * std::max<int64_t>(D, 1);
  return fitting(caches, {all, 2, all}, {MOST_BACKWARD_KEYS, MOST_HELD, 176});
}

}  // namespace eyeline
