// Numbers of the three types in memory, by their definitions: slow, and unlike the kernels' own.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#include "../problem.h"

namespace eyeline {

inline int64_t bytes_of(Number number) { return number == Number::float32 ? 4 : 2; }

// Half of the gap between 1 and the next number: what rounding may change, relatively.
inline double rounding(Number number) {
  return number == Number::float32 ? 0x1p-24 : number == Number::bfloat16 ? 0x1p-8 : 0x1p-11;
}

// Half of the smallest positive number.
inline double smallest(Number number) { return number == Number::float16 ? 0x1p-25 : 0x1p-127; }

// Bits of sign, exponent and fraction, as IEEE 754 reads them.
inline double decoded(uint32_t bits, int exponent_bits, int fraction_bits) {
  const int top = (1 << exponent_bits) - 1, bias = top >> 1;
  const int exponent = static_cast<int>(bits >> fraction_bits) & top;
  const double fraction = std::ldexp(static_cast<double>(bits & ((1u << fraction_bits) - 1)),
                                     -fraction_bits);
  const bool negative = bits >> (exponent_bits + fraction_bits) & 1;
  double size = exponent == 0 ? std::ldexp(fraction, 1 - bias)
                              : std::ldexp(1.0 + fraction, exponent - bias);
  if (exponent == top) size = fraction == 0.0 ? INFINITY : NAN;
  return negative ? -size : size;
}

inline double read(Number number, const char* at) {
  uint32_t bits = 0;
  std::memcpy(&bits, at, static_cast<size_t>(bytes_of(number)));
  if (number == Number::bfloat16) return decoded(bits, 8, 7);
  if (number == Number::float16) return decoded(bits, 5, 10);
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return static_cast<double>(x);
}

// The number next to x towards zero; NaN and inf are kept, and a float16 is at least 2^-14 or 0.
inline void write(Number number, double x, char* at) {
  const float rounded = static_cast<float>(x);
  uint32_t bits;
  std::memcpy(&bits, &rounded, sizeof bits);
  if (std::isnan(x)) bits = 0x7fc00000;
  if (number == Number::bfloat16) bits >>= 16;
  if (number == Number::float16) {
    const uint32_t sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
    if (size >= 0x7f800000)
      bits = sign | 0x7c00 | (std::isnan(x) ? 0x200 : 0);
    else
      bits = size < 0x38800000 ? sign : sign | ((size - 0x38000000) >> 13);
  }
  std::memcpy(at, &bits, static_cast<size_t>(bytes_of(number)));
}

}  // namespace eyeline
