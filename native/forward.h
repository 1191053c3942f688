#pragma once
#include "problem.h"
#include "table.h"

namespace eyeline {

// out and lse of the problem. False where there was no memory.
bool forward(const Table& table, const Problem& problem, int threads, const Watch& watch);

}  // namespace eyeline
