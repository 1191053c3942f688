#include "blocks.h"

#include <algorithm>

namespace eyeline {

namespace {

constexpr int64_t number = sizeof(float);  // bytes: all is counted as floats
constexpr int64_t fewest_keys = 64, fewest_held = 4, fewest_strips = 64, most_strips = 128;

}  // namespace

Blocks blocks(const Caches& caches, int64_t D, int64_t Dv) {
  const int64_t near = caches.level2, key = std::max<int64_t>(D, 1) * number;
  Blocks made;
  while (made.keys > fewest_keys && made.keys * key > near / 2) made.keys /= 2;
  const int64_t scores = STRIP_ROWS * made.keys * number;
  made.held = static_cast<int>(std::clamp(near / 4 / scores, fewest_held, int64_t{MOST_HELD}));
  const int64_t rows = STRIP_ROWS * (key + Dv * number);
  made.strips = static_cast<int>(std::clamp(2 * near / rows, fewest_strips, most_strips));
  return made;
}

}  // namespace eyeline
