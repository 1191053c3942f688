#pragma once
#include "problem.h"
#include "table.h"

namespace eyeline {

// The gradients that are wanted. False where there was no memory.
bool backward(const Table& table, const Problem& problem, const Slopes& slopes, int threads,
              const Watch& watch);

}  // namespace eyeline
