// 2^x and tanh, to about an ulp. NaN stays NaN.
#pragma once
#include "simd.h"

namespace {

constexpr float log2e = 1.44269504088896341f;
constexpr double ln2 = 0.693147180559945309417232121458;

// 2^x for x <= 127; 0 below 2^-126 (so that -inf gives 0). 2^n by the exponent's bits, 2^f with
// f in [-1/2, 1/2] by 1 + f·p(f), p the polynomial of degree 5 of the least largest relative error
// (2e-9). At 0 it is exactly 1.
inline F exp2(F x) {
  constexpr float magic = 12582912.0f;  // 1.5 · 2^23: adding it rounds to an integer
  const F shifted = x + magic;
  const F f = x - (shifted - magic);
  F p = f * 0x1.41fbbcp-13f + 0x1.5f3e54p-10f;
  p = p * f + 0x1.3b2d4cp-7f;
  p = p * f + 0x1.c6aee8p-5f;
  p = p * f + 0x1.ebfbdcp-3f;
  p = p * f + 0x1.62e430p-1f;
  p = p * f + 1.0f;
  const U power = ((U)shifted << 23) + (127u << 23);
  const F made = p * (F)power;
  return x < -126.0f ? F{} : made;
}

inline float exp2(float x) { return exp2(splat(x))[0]; }

// The rational approximation of Eigen (generic_fast_tanh_float): 13th over 6th degree.
inline F tanh(F x) {
  constexpr float end = 7.90531110763549805f;
  const F t = max(splat(-end), min(splat(end), x)), s = t * t;
  F p = s * -2.76076847742355e-16f + 2.00018790482477e-13f;
  p = p * s + -8.60467152213735e-11f;
  p = p * s + 5.12229709037114e-08f;
  p = p * s + 1.48572235717979e-05f;
  p = p * s + 6.37261928875436e-04f;
  p = p * s + 4.89352455891786e-03f;
  F q = s * 1.19825839466702e-06f + 1.18534705686654e-04f;
  q = q * s + 2.26843463243900e-03f;
  q = q * s + 4.89352518554385e-03f;
  return t * p / q;
}

}  // namespace
