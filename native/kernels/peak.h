// What the machine can do at most: multiply-adds that wait for nothing, and reads of memory.
#pragma once
#include "product.h"

namespace {

// Does `rounds` × 2R vectors of a·b + c in registers; returns how many operations these were. The sums
// begin at the number in `result`, which no compiler knows: one of 1 would stay 1, and be left out.
double multiply_adds(int64_t rounds, float* result) {
  F sums[2 * R];
  for (int i = 0; i < 2 * R; ++i) sums[i] = splat(*result + static_cast<float>(i));
  const F a = splat(0.999f), b = splat(1e-3f);
  for (int64_t n = 0; n < rounds; ++n)
#pragma GCC unroll 12
    for (int i = 0; i < 2 * R; ++i) sums[i] = sums[i] * a + b;
  F total{};
  for (int i = 0; i < 2 * R; ++i) total += sums[i];
  *result = sum(total);  // so that the loop is not left out
  return 2.0 * 2 * R * W * static_cast<double>(rounds);
}

// The sum of `count` floats, read as S streams side by side, each a run of its own. What does not
// fill four vectors of every stream is left out.
template <int S>
float read_streams(const float* data, int64_t count) {
  F sums[S]{};
  const int64_t step = 4 * W, length = count / S / step * step;
  for (int64_t i = 0; i < length; i += step)
#pragma GCC unroll 8
    for (int s = 0; s < S; ++s) {
      const float* at = data + s * length + i;
      sums[s] += (load(at) + load(at + W)) + (load(at + 2 * W) + load(at + 3 * W));
    }
  F total{};
  for (int s = 0; s < S; ++s) total += sums[s];
  return sum(total);
}

float read_floats(const float* data, int64_t count, int64_t streams) {
  if (streams >= 8) return read_streams<8>(data, count);
  if (streams >= 4) return read_streams<4>(data, count);
  if (streams >= 2) return read_streams<2>(data, count);
  return read_streams<1>(data, count);
}

}  // namespace
