#pragma once
#include "problem.h"
#include "question.h"
#include "table.h"

namespace eyeline {

// Answers every question in one pass over the scores; in two where the rows' state is not known.
// False where there was no memory.
bool reduce(const Table& table, const Problem& problem, Questions& questions, int threads,
            const Watch& watch);

}  // namespace eyeline
