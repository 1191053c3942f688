// Threads that share the parts of one piece of work.
#pragma once
#include <cstdint>

#include "problem.h"

namespace eyeline {

struct Work {
  int64_t parts = 0;
  int64_t memory = 0;  // bytes that each thread needs
  void (*run)(const void* self, int64_t part, char* memory, const Watch& watch) = nullptr;
  const void* self = nullptr;
};

// Under test: memory is NaN wherever a part has not written it.
void poison(bool on);
bool poisoned();

// Does every part, on `size` threads at most. False where there was no memory.
//
// Which thread does a part changes nothing about its result. There is one team per process: who
// finds it taken, or runs in a forked child (where the threads of the parent are gone), works
// alone.
bool share(const Work& work, int size, const Watch& watch);

}  // namespace eyeline
