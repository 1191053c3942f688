// What the processor can do at most: multiply-adds that wait for nothing.
#pragma once
#include "product.h"

namespace {

// Does `rounds` × 2R vectors of a·b + c in registers; returns how many operations these were.
double multiply_adds(int64_t rounds, float* result) {
  F sums[2 * R];
  for (int i = 0; i < 2 * R; ++i) sums[i] = splat(static_cast<float>(i));
  const F a = splat(0.999f), b = splat(1e-3f);
  for (int64_t n = 0; n < rounds; ++n)
#pragma GCC unroll 12
    for (int i = 0; i < 2 * R; ++i) sums[i] = sums[i] * a + b;
  F total{};
  for (int i = 0; i < 2 * R; ++i) total += sums[i];
  *result = sum(total);  // so that the loop is not left out
  return 2.0 * 2 * R * W * static_cast<double>(rounds);
}

}  // namespace
