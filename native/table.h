// A table: every kernel, compiled for one instruction set.
#pragma once
#include "problem.h"
#include "question.h"

namespace eyeline {

struct Table {
  const char* name;
  int64_t (*memory)(const Problem& problem);           // bytes that a thread needs
  void (*forward)(const Problem& problem, const Part& part, char* memory, const Watch& watch);
  void (*join)(const Problem& problem, const Part& part, const float* partials, int64_t count,
               char* memory);                          // the results of parts of its keys
  int64_t (*backward_memory)(const Problem& problem);  // bytes that a thread needs for a cell
  void (*backward)(const Problem& problem, const Slopes& slopes, const Cell& cell, char* memory,
                   const Watch& watch);
  int64_t (*reduce_memory)(const Problem& problem);
  void (*reduce)(const Problem& problem, const Questions& questions, const Chunk& chunk,
                 char* memory, const Watch& watch);
  // The machine's limits, for benchmarks: operations done, and the sum of what was read.
  double (*multiply_adds)(int64_t rounds, float* result);
  float (*read_floats)(const float* data, int64_t count, int64_t streams);
};

// The tables that this processor can run, the best one first; `count` says how many.
const Table* const* tables(int* count);

// The table of this name, null where it is unknown or this processor cannot run it.
const Table* table(const char* name);

}  // namespace eyeline
