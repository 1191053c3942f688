// Numbers in memory and as floats.
#pragma once
#if defined(__F16C__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#include <type_traits>

#include "../problem.h"
#include "simd.h"

namespace {

inline uint32_t bits_of(float x) {
  uint32_t b;
  std::memcpy(&b, &x, sizeof b);
  return b;
}

inline float float_of(uint32_t b) {
  float x;
  std::memcpy(&x, &b, sizeof x);
  return x;
}

typedef uint16_t Half __attribute__((vector_size(2 * W)));

inline Half load_half(const void* p) {
  Half v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

inline void store_half(void* p, Half v) { std::memcpy(p, &v, sizeof v); }

struct Float32 {
  float x;
  static F vector(const Float32* p) { return load(&p->x); }
  static float read(Float32 v) { return v.x; }
  static Float32 round(float x) { return {x}; }
  static void write(Float32* p, F v) { store(&p->x, v); }
};

struct Bfloat16 {
  uint16_t bits;
  static F vector(const Bfloat16* p) {
    return (F)(__builtin_convertvector(load_half(p), U) << 16);
  }
  static float read(Bfloat16 v) { return float_of(static_cast<uint32_t>(v.bits) << 16); }
  static Bfloat16 round(float x) {
    const uint32_t b = bits_of(x);
    if (x != x) return {static_cast<uint16_t>((b >> 16) | 0x40)};
    return {static_cast<uint16_t>((b + 0x7fff + ((b >> 16) & 1)) >> 16)};
  }
  static void write(Bfloat16* p, F v) {
    const U b = (U)v, quiet = (b >> 16) | 0x40, near = (b + 0x7fff + ((b >> 16) & 1)) >> 16;
    store_half(p, __builtin_convertvector(v != v ? quiet : near, Half));
  }
};

struct Float16 {
  uint16_t bits;
  static F vector(const Float16* p) {
#if defined(__AVX512F__)
    // As _mm512_cvtph_ps, whose definition gcc warns of.
    return (F)_mm512_maskz_cvtph_ps(0xffff, (__m256i)load_half(p));
#elif defined(__F16C__)
    return (F)_mm256_cvtph_ps((__m128i)load_half(p));
#elif defined(__ARM_NEON)
    return (F)vcvt_f32_f16((float16x4_t)load_half(p));
#else
    F v;
    for (int i = 0; i < W; ++i) v[i] = read(p[i]);
    return v;
#endif
  }
  static float read(Float16 v) {
#if defined(__F16C__)
    return _cvtsh_ss(v.bits);
#else
    // Normal numbers by a shift of the exponent; subnormal ones are m · 2^-24.
    const uint32_t sign = static_cast<uint32_t>(v.bits & 0x8000) << 16, rest = v.bits & 0x7fff;
    if (rest >= 0x7c00) return float_of(sign | 0x7f800000 | ((rest & 0x3ff) << 13));
    if (rest >= 0x400) return float_of(sign | ((rest << 13) + (112u << 23)));
    const float small = static_cast<float>(rest) * 0x1p-24f;
    return sign ? -small : small;
#endif
  }
  static Float16 round(float x) {
#if defined(__F16C__)
    return {static_cast<uint16_t>(_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT))};
#else
    const uint32_t b = bits_of(x), size = b & 0x7fffffff;
    const uint16_t sign = static_cast<uint16_t>((b >> 16) & 0x8000);
    if (size > 0x7f800000) return {static_cast<uint16_t>(sign | 0x7e00)};
    if (size >= 0x477ff000) return {static_cast<uint16_t>(sign | 0x7c00)};  // rounds beyond 65504
    if (size < 0x38800000) {  // subnormal: adding 2^-1 leaves m · 2^-24, rounded to even
      const float shifted = float_of(size) + 0.5f;
      return {static_cast<uint16_t>(sign | (bits_of(shifted) - bits_of(0.5f)))};
    }
    const uint32_t rounded = size + 0xfff + ((size >> 13) & 1) - (112u << 23);
    return {static_cast<uint16_t>(sign | (rounded >> 13))};
#endif
  }
  static void write(Float16* p, F v) {
#if defined(__AVX512F__)
    store_half(p, (Half)_mm512_maskz_cvtps_ph(0xffff, (__m512)v, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__F16C__)
    store_half(p, (Half)_mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT));
#else
    for (int i = 0; i < W; ++i) p[i] = round(v[i]);
#endif
  }
};

// q and k are packed for their product as floats or, where the set multiplies such, as pairs of
// bfloat16, each in the place of a float.
template <class T>
constexpr bool paired = PAIRS && std::is_same_v<T, Bfloat16>;

// How many places n numbers take; the last pair may be half empty.
template <class T>
constexpr int64_t places(int64_t n) {
  return paired<T> ? (n + 1) / 2 : n;
}

// W places.
template <class T>
inline F load_places(const T* p) {
  if constexpr (!paired<T>) return T::vector(p);
  F v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

// n numbers with a stride between them, to places that are `apart` from each other.
template <class T>
inline void pack_places(const T* from, int64_t stride, int64_t n, int64_t apart, float* to) {
  if constexpr (paired<T>) {
    for (int64_t d = 0; d < n; d += 2, to += apart) {
      const T pair[2] = {from[d * stride], d + 1 < n ? from[(d + 1) * stride] : T{}};
      std::memcpy(to, pair, sizeof pair);
    }
  } else {
    for (int64_t d = 0; d < n; ++d) to[d * apart] = T::read(from[d * stride]);
  }
}

// The first n < W numbers of a line, then 0.
template <class T>
inline F beginning(const T* p, int64_t n) {
  F v{};
  for (int64_t i = 0; i < n; ++i) v[i] = T::read(p[i]);
  return v;
}

// n numbers with a stride between them, as floats side by side.
template <class T>
inline void read_line(const T* from, int64_t stride, int64_t n, float* to) {
  if (stride == 1)
    for (int64_t i = 0; i < n; ++i) to[i] = T::read(from[i]);
  else
    for (int64_t i = 0; i < n; ++i) to[i] = T::read(from[i * stride]);
}

// Calls `f` with the type of the numbers.
template <class Call>
inline void with_number(eyeline::Number number, const Call& f) {
  switch (number) {
    case eyeline::Number::float32: return f(Float32{});
    case eyeline::Number::bfloat16: return f(Bfloat16{});
    case eyeline::Number::float16: return f(Float16{});
  }
}

}  // namespace
