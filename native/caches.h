// How large the processor's caches are: asked once, of the system.
#pragma once
#include <cstdint>

namespace eyeline {

// Bytes of data that each level holds; the last one is shared by the cores.
struct Caches {
  int64_t level1 = 32 << 10, level2 = 512 << 10, level3 = 8 << 20;
};

// A level that the system says nothing about keeps the modest size above.
const Caches& caches();

}  // namespace eyeline
