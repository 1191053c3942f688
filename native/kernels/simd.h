// Vectors of floats and the few things done with them. The compiler's own vector types, so that one
// source serves every instruction set; W is what the set at hand has.
#pragma once
#include <cstdint>
#include <cstring>

namespace {

#if defined(__AVX512F__)
constexpr int W = 16;
#elif defined(__AVX2__)
constexpr int W = 8;
#else
constexpr int W = 4;
#endif

typedef float F __attribute__((vector_size(4 * W)));
typedef int32_t I __attribute__((vector_size(4 * W)));
typedef uint32_t U __attribute__((vector_size(4 * W)));

constexpr float infinity = __builtin_inff();

inline F load(const float* p) {
  F v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

inline void store(float* p, F v) { std::memcpy(p, &v, sizeof v); }

inline F splat(float x) { return x - F{}; }

// Where one is NaN the second is taken: max(x, largest) skips NaN, max(limit, x) keeps it.
inline F max(F a, F b) { return a > b ? a : b; }
inline F min(F a, F b) { return a < b ? a : b; }

inline float sum(F v) {
  float total = 0.0f;
  for (int i = 0; i < W; ++i) total += v[i];
  return total;
}

inline float largest(F v) {
  float most = -infinity;
  for (int i = 0; i < W; ++i) most = v[i] > most ? v[i] : most;
  return most;
}

inline int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }
inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

}  // namespace
