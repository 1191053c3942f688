// Vectors of floats and the few things done with them. The compiler's own vector types, so that one
// source serves every instruction set; W is what the set at hand has.
#pragma once
#include <cstdint>
#include <cstring>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

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

// Whether the set multiplies pairs of bfloat16, two in the place of a float.
#if defined(__AVX512BF16__)
constexpr bool PAIRS = true;
#else
constexpr bool PAIRS = false;
#endif

// sum + a · b, where each lane of a and b holds a pair of bfloat16. A product of two of them is exact;
// sums are floats, rounded after each product. The instruction takes what is below 2^-126 for 0, in
// its operands and in its sums: next to any score that a softmax could tell from 0 that is nothing.
inline F add_pairs(F sum, F a, F b) {
#if defined(__AVX512BF16__)
  return (F)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
#else
  constexpr uint32_t upper = 0xffff0000;
  sum += (F)((U)a & upper) * (F)((U)b & upper);
  return sum + (F)((U)a << 16) * (F)((U)b << 16);
#endif
}

// Where one is NaN the second is taken: max(x, largest) skips NaN, max(limit, x) keeps it.
inline F max(F a, F b) { return a > b ? a : b; }
inline F min(F a, F b) { return a < b ? a : b; }

// Bit j says whether lane j is true.
inline uint32_t lanes(I truth) {
#if defined(__AVX512F__)
  return _mm512_movepi32_mask((__m512i)truth);
#elif defined(__AVX2__)
  return static_cast<uint32_t>(_mm256_movemask_ps((__m256)truth));
#else
  uint32_t made = 0;
  for (int j = 0; j < W; ++j) made |= truth[j] ? 1u << j : 0u;
  return made;
#endif
}

// Lane j of the result is lane index[j] of a and b side by side.
inline F shuffle(F a, F b, I index) {
#if defined(__clang__)
  F made;
  for (int j = 0; j < W; ++j) made[j] = index[j] < W ? a[index[j]] : b[index[j] - W];
  return made;
#else
  return __builtin_shuffle(a, b, index);
#endif
}

// Lanes j and j ^ s change places.
template <int s>
inline F across(F v) {
  I index;
  for (int j = 0; j < W; ++j) index[j] = j ^ s;
  return shuffle(v, v, index);
}

inline float sum(F v) {
  if constexpr (W > 8) v += across<W / 2>(v);
  if constexpr (W > 4) v += across<4 % W>(v);
  v += across<2>(v);
  v += across<1>(v);
  return v[0];
}

// Step s of W sums at once: the lanes with bit s go to the second half of the vectors.
template <int s>
inline void fold(F (&v)[W]) {
  I own, other;
  for (int j = 0; j < W; ++j) {
    own[j] = j & s ? W + j : j;
    other[j] = j & s ? W + (j ^ s) : j ^ s;
  }
#pragma GCC unroll 16
  for (int i = 0; i < s; ++i) v[i] = shuffle(v[i], v[i + s], own) + shuffle(v[i], v[i + s], other);
}

// Lane i of the result is the sum of v[i].
inline F sums_of(F (&v)[W]) {
  if constexpr (W > 8) fold<W / 2>(v);
  if constexpr (W > 4) fold<4 % W>(v);
  fold<2>(v);
  fold<1>(v);
  return v[0];
}

inline float largest(F v) {
  if constexpr (W > 8) v = max(v, across<W / 2>(v));
  if constexpr (W > 4) v = max(v, across<4 % W>(v));
  v = max(v, across<2>(v));
  return max(v, across<1>(v))[0];
}

// Step s of a transpose: entries (i, j + s) and (i + s, j) change places, for i and j without bit s.
template <int s>
inline void swap_blocks(F (&rows)[W]) {
  I low, high;
  for (int j = 0; j < W; ++j) {
    low[j] = j & s ? W + j - s : j;
    high[j] = j & s ? W + j : j + s;
  }
#pragma GCC unroll 16
  for (int i = 0; i < W; ++i) {
    if (i & s) continue;
    const F a = rows[i], b = rows[i + s];
    rows[i] = shuffle(a, b, low);
    rows[i + s] = shuffle(a, b, high);
  }
}

inline void transpose(F (&rows)[W]) {
  swap_blocks<1>(rows);
  swap_blocks<2>(rows);
  if constexpr (W > 4) swap_blocks<W == 4 ? 2 : 4>(rows);
  if constexpr (W > 8) swap_blocks<W / 2>(rows);
}

inline bool finite(float x) { return x - x == 0.0f; }
inline int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }
inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

// The next `count` T of a piece of memory, from a cache line of its own on.
template <class T>
T* take(char*& memory, int64_t count) {
  T* here = reinterpret_cast<T*>(memory);
  memory += round_up(count * static_cast<int64_t>(sizeof(T)), 64);
  return here;
}

}  // namespace
