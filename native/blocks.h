// How much of a problem is worked on at once: what is used often stays in the second cache.
#pragma once
#include <cstdint>

#include "caches.h"

namespace eyeline {

constexpr int STRIP_ROWS = 6;            // rows whose scores are computed at once
constexpr int MOST_KEYS = 512;           // of a block, as kernels lay out scores
constexpr int MOST_BACKWARD_KEYS = 256;  // the same of gradients, whose cells are cut by so many
constexpr int MOST_HELD = 32;            // strips
constexpr int FEWEST_STRIPS = 64;        // that are worth packing keys for

struct Blocks {
  int keys = 64;  // of a block: a power of two, so that 2048 keys are whole blocks
  int held = 4;   // strips whose scores are held at once
  int strips = FEWEST_STRIPS;  // that share packed keys and values
};

// For keys of D numbers and values of Dv. What is packed of a block takes the second cache at most
// (but a block has no fewer keys than above), the scores held a quarter; queries and sums of a part,
// which pass by once for each block, twice as much as it has, unless packing would not pay for so
// few rows. How many keys follows from D alone, as if values were as long, and not from what is
// asked, so that every pass sums up a row in one order.
Blocks blocks(const Caches& caches, int64_t D, int64_t Dv);

// The same for gradients. Rows that share packed keys sum up gradients of these: how many they are
// follows from D alone too.
Blocks backward_blocks(const Caches& caches, int64_t D);

}  // namespace eyeline
