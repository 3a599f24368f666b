// Bodies for the AVX-512 intrinsics that csrc/cpu uses, from those of AVX2, FMA and F16C on both halves: so that the
// engines of AVX-512 and AMX run on a processor without AVX-512. Included before everything else (any_processor.cmake).
// The reciprocal is the nearest one of 14 bits, which is not what a chip gives to the bit.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

// After <immintrin.h>, which reads the first.
#define __AVX512F__ 1
#define __AMX_TILE__ 1

namespace {
namespace in_vectors {

#define ELMO_FAST_INLINE static inline __attribute__((always_inline))

template <class Full>
struct HalfOf;
template <>
struct HalfOf<__m512> {
  using type = __m256;
};
template <>
struct HalfOf<__m512i> {
  using type = __m256i;
};
template <>
struct HalfOf<__m256i> {  // 16-bit values
  using type = __m128i;
};
template <>
struct HalfOf<__mmask16> {
  using type = int;
};

template <class Full>
ELMO_FAST_INLINE typename HalfOf<Full>::type half(const Full& x, int number) {
  typename HalfOf<Full>::type part;
  std::memcpy(&part, reinterpret_cast<const char*>(&x) + number * sizeof part, sizeof part);
  return part;
}
ELMO_FAST_INLINE int half(const __mmask16& mask, int number) { return mask >> (8 * number) & 0xff; }

template <class Full>
ELMO_FAST_INLINE Full joined(typename HalfOf<Full>::type low, typename HalfOf<Full>::type high) {
  Full x;
  std::memcpy(&x, &low, sizeof low);
  std::memcpy(reinterpret_cast<char*>(&x) + sizeof low, &high, sizeof high);
  return x;
}
template <>
inline __attribute__((always_inline)) __mmask16 joined<__mmask16>(int low, int high) {
  return static_cast<__mmask16>(low | high << 8);
}

// function(half of each operand) for both halves.
template <class Result, class Function, class... Operands>
ELMO_FAST_INLINE Result on_halves(Function function, Operands... operands) {
  return joined<Result>(function(half(operands, 0)...), function(half(operands, 1)...));
}

// All bits of each lane that the mask names.
ELMO_FAST_INLINE __m256i lanes(int mask) {
  const __m256i bits = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  return _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(mask), bits), bits);
}
ELMO_FAST_INLINE __m256 select(int mask, __m256 no, __m256 yes) {
  return _mm256_blendv_ps(no, yes, _mm256_castsi256_ps(lanes(mask)));
}
ELMO_FAST_INLINE __m256i select(int mask, __m256i no, __m256i yes) { return _mm256_blendv_epi8(no, yes, lanes(mask)); }

template <class Function>
ELMO_FAST_INLINE __m256 by_lane(__m256 a, __m256 b, Function function) {
  float x[8], y[8];
  _mm256_storeu_ps(x, a), _mm256_storeu_ps(y, b);
  for (int k = 0; k < 8; ++k) x[k] = function(x[k], y[k]);
  return _mm256_loadu_ps(x);
}

ELMO_FAST_INLINE float reciprocal(float x) {
  const float inverse = 1 / x;
  uint32_t bits;
  std::memcpy(&bits, &inverse, sizeof bits);
  bits = (bits + 0x200) & ~0x3ffu;
  float rounded;
  std::memcpy(&rounded, &bits, sizeof rounded);
  return std::isfinite(rounded) ? rounded : inverse;
}
// x * 2^floor(n), rounded once.
ELMO_FAST_INLINE float scaled(float x, float n) {
  if (std::isnan(n)) return n;
  return std::ldexp(x, static_cast<int>(std::floor(std::min(std::max(n, -1000.0f), 1000.0f))));
}

// ---- arithmetic

ELMO_FAST_INLINE __m512 set1_ps(float x) { return joined<__m512>(_mm256_set1_ps(x), _mm256_set1_ps(x)); }
ELMO_FAST_INLINE __m512i set1_epi32(int x) { return joined<__m512i>(_mm256_set1_epi32(x), _mm256_set1_epi32(x)); }
ELMO_FAST_INLINE __m512 setzero_ps() { return set1_ps(0.0f); }

#define ELMO_FAST_BINARY(name, Type, Half, body) \
  ELMO_FAST_INLINE Type name(Type p, Type q) {   \
    return on_halves<Type>([](Half a, Half b) { return body; }, p, q); \
  }
ELMO_FAST_BINARY(max_ps, __m512, __m256, _mm256_max_ps(a, b))
ELMO_FAST_BINARY(min_ps, __m512, __m256, _mm256_min_ps(a, b))
ELMO_FAST_BINARY(scalef_ps, __m512, __m256, by_lane(a, b, scaled))
ELMO_FAST_BINARY(and_si512, __m512i, __m256i, _mm256_and_si256(a, b))
ELMO_FAST_BINARY(andnot_si512, __m512i, __m256i, _mm256_andnot_si256(a, b))
ELMO_FAST_BINARY(or_si512, __m512i, __m256i, _mm256_or_si256(a, b))
ELMO_FAST_BINARY(madd_epi16, __m512i, __m256i, _mm256_madd_epi16(a, b))
#undef ELMO_FAST_BINARY

#define ELMO_FAST_FMA(name, half_name)                                                                          \
  ELMO_FAST_INLINE __m512 name(__m512 p, __m512 q, __m512 r) {                                                  \
    return on_halves<__m512>([](__m256 a, __m256 b, __m256 c) { return half_name(a, b, c); }, p, q, r);         \
  }
ELMO_FAST_FMA(fmadd_ps, _mm256_fmadd_ps)
ELMO_FAST_FMA(fnmadd_ps, _mm256_fnmadd_ps)
ELMO_FAST_FMA(fnmsub_ps, _mm256_fnmsub_ps)
#undef ELMO_FAST_FMA

ELMO_FAST_INLINE __m512 rcp14_ps(__m512 x) {
  return on_halves<__m512>([](__m256 a) { return by_lane(a, a, [](float v, float) { return reciprocal(v); }); }, x);
}
ELMO_FAST_INLINE __m512i slli_epi32(__m512i x, int n) {
  return on_halves<__m512i>([n](__m256i a) { return _mm256_slli_epi32(a, n); }, x);
}

// ---- casts and conversions

ELMO_FAST_INLINE __m512 castsi512_ps(__m512i x) { return reinterpret_cast<__m512>(x); }
ELMO_FAST_INLINE __m512i castps_si512(__m512 x) { return reinterpret_cast<__m512i>(x); }
ELMO_FAST_INLINE __m512 abs_ps(__m512 x) {
  return castsi512_ps(and_si512(castps_si512(x), set1_epi32(0x7fffffff)));
}
ELMO_FAST_INLINE __m512i cvtepu16_epi32(__m256i x) {
  return on_halves<__m512i>([](__m128i a) { return _mm256_cvtepu16_epi32(a); }, x);
}
ELMO_FAST_INLINE __m256i cvtepi32_epi16(__m512i x) {
  return on_halves<__m256i>(
      [](__m256i a) {
        const __m256i low = _mm256_and_si256(a, _mm256_set1_epi32(0xffff));
        return _mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
      },
      x);
}
ELMO_FAST_INLINE __m512 cvtepi32_ps(__m512i x) {
  return on_halves<__m512>([](__m256i a) { return _mm256_cvtepi32_ps(a); }, x);
}
ELMO_FAST_INLINE __m512 cvtph_ps(__m256i x) {
  return on_halves<__m512>([](__m128i a) { return _mm256_cvtph_ps(a); }, x);
}
ELMO_FAST_INLINE __m256i cvtps_ph(__m512 x) {
  return on_halves<__m256i>([](__m256 a) { return _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT); }, x);
}
ELMO_FAST_INLINE float flushed(float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }
// To nearest, ties to even; a denormal becomes zero, NaN stays NaN.
ELMO_FAST_INLINE __m256bh cvtneps_pbh(__m512 x) {
  uint32_t bits[16];
  uint16_t rounded[16];
  std::memcpy(bits, &x, sizeof bits);
  for (int k = 0; k < 16; ++k) {
    const uint32_t size = bits[k] & 0x7fffffff;
    if (size > 0x7f800000) rounded[k] = static_cast<uint16_t>(bits[k] >> 16 | 0x40);
    else if (size < 0x00800000) rounded[k] = static_cast<uint16_t>(bits[k] >> 16 & 0x8000);
    else rounded[k] = static_cast<uint16_t>((bits[k] + 0x7fff + (bits[k] >> 16 & 1)) >> 16);
  }
  __m256bh all;
  std::memcpy(&all, rounded, sizeof all);
  return all;
}
// sum += the odd products, then the even ones; denormals are zero throughout.
ELMO_FAST_INLINE __m512 dpbf16_ps(__m512 sum, __m512bh a, __m512bh b) {
  float sums[16];
  uint16_t p[32], q[32];
  std::memcpy(sums, &sum, sizeof sums), std::memcpy(p, &a, sizeof p), std::memcpy(q, &b, sizeof q);
  const auto widened = [](uint16_t value) {
    const uint32_t bits = static_cast<uint32_t>(value) << 16;
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return flushed(x);
  };
  for (int k = 0; k < 16; ++k)
    for (int odd = 1; odd >= 0; --odd)
      sums[k] = flushed(std::fma(widened(p[2 * k + odd]), widened(q[2 * k + odd]), flushed(sums[k])));
  std::memcpy(&sum, sums, sizeof sum);
  return sum;
}
ELMO_FAST_INLINE __m512i castsi256_si512(__m256i x) { return joined<__m512i>(x, x); }
ELMO_FAST_INLINE __m512i inserti64x4(__m512i x, __m256i high) { return joined<__m512i>(half(x, 0), high); }

// ---- masks

template <int Predicate>
ELMO_FAST_INLINE __mmask16 cmp_ps_mask(__m512 p, __m512 q) {
  return on_halves<__mmask16>([](__m256 a, __m256 b) { return _mm256_movemask_ps(_mm256_cmp_ps(a, b, Predicate)); }, p,
                              q);
}
ELMO_FAST_INLINE __m512 mask_blend_ps(__mmask16 mask, __m512 no, __m512 yes) {
  return on_halves<__m512>([](int m, __m256 a, __m256 b) { return select(m, a, b); }, mask, no, yes);
}
ELMO_FAST_INLINE __m512i mask_blend(__mmask16 mask, __m512i no, __m512i yes) {
  return on_halves<__m512i>([](int m, __m256i a, __m256i b) { return select(m, a, b); }, mask, no, yes);
}
ELMO_FAST_INLINE __m512 maskz_fmadd_ps(__mmask16 mask, __m512 a, __m512 b, __m512 c) {
  return mask_blend_ps(mask, setzero_ps(), fmadd_ps(a, b, c));
}
ELMO_FAST_INLINE __m256i maskz_mov_epi16(__mmask16 mask, __m256i x) {
  return cvtepi32_epi16(mask_blend(mask, set1_epi32(0), cvtepu16_epi32(x)));
}

// ---- memory: aligned where the instruction asks for it

ELMO_FAST_INLINE __m512 load_ps(const void* from) {
  const float* p = static_cast<const float*>(from);
  return joined<__m512>(_mm256_load_ps(p), _mm256_load_ps(p + 8));
}
ELMO_FAST_INLINE void store_ps(void* to, __m512 x) {
  float* p = static_cast<float*>(to);
  _mm256_store_ps(p, half(x, 0)), _mm256_store_ps(p + 8, half(x, 1));
}
ELMO_FAST_INLINE void stream_si512(void* to, __m512i x) { store_ps(to, castsi512_ps(x)); }
ELMO_FAST_INLINE void storeu_si512(void* to, __m512i x) { std::memcpy(to, &x, sizeof x); }
ELMO_FAST_INLINE __m512 maskz_loadu_ps(__mmask16 mask, const void* from) {
  const float* p = static_cast<const float*>(from);
  return joined<__m512>(_mm256_maskload_ps(p, lanes(mask & 0xff)), _mm256_maskload_ps(p + 8, lanes(mask >> 8)));
}
ELMO_FAST_INLINE void mask_storeu_epi16(void* to, __mmask16 mask, __m256i x) {
  uint16_t values[16];
  std::memcpy(values, &x, sizeof values);
  for (int k = 0; k < 16; ++k)
    if (mask >> k & 1) std::memcpy(static_cast<char*>(to) + 2 * k, values + k, 2);
}

#undef ELMO_FAST_INLINE

}  // namespace in_vectors
}  // namespace

// Some are macros of the compiler's.
#undef _mm512_cmp_ps_mask
#undef _mm512_cvtps_ph
#undef _mm512_inserti64x4
#undef _mm512_slli_epi32
#define _mm512_abs_ps in_vectors::abs_ps
#define _mm512_and_si512 in_vectors::and_si512
#define _mm512_andnot_si512 in_vectors::andnot_si512
#define _mm512_castps_si512 in_vectors::castps_si512
#define _mm512_castsi256_si512 in_vectors::castsi256_si512
#define _mm512_castsi512_ps in_vectors::castsi512_ps
#define _mm512_cmp_ps_mask(a, b, predicate) in_vectors::cmp_ps_mask<predicate>(a, b)
#define _mm512_cvtepi32_ps in_vectors::cvtepi32_ps
#define _mm512_cvtepu16_epi32 in_vectors::cvtepu16_epi32
#define _mm512_cvtneps_pbh in_vectors::cvtneps_pbh
#define _mm512_cvtph_ps in_vectors::cvtph_ps
#define _mm512_cvtps_ph(x, rounding) in_vectors::cvtps_ph(x)
#define _mm512_dpbf16_ps in_vectors::dpbf16_ps
#define _mm512_fmadd_ps in_vectors::fmadd_ps
#define _mm512_fnmadd_ps in_vectors::fnmadd_ps
#define _mm512_fnmsub_ps in_vectors::fnmsub_ps
#define _mm512_inserti64x4(x, high, number) in_vectors::inserti64x4(x, high)
#define _mm512_load_ps in_vectors::load_ps
#define _mm512_madd_epi16 in_vectors::madd_epi16
#define _mm512_mask_blend_ps in_vectors::mask_blend_ps
#define _mm512_maskz_fmadd_ps in_vectors::maskz_fmadd_ps
#define _mm512_maskz_loadu_ps in_vectors::maskz_loadu_ps
#define _mm512_max_ps in_vectors::max_ps
#define _mm512_min_ps in_vectors::min_ps
#define _mm512_or_epi32 in_vectors::or_si512
#define _mm512_or_si512 in_vectors::or_si512
#define _mm512_rcp14_ps in_vectors::rcp14_ps
#define _mm512_scalef_ps in_vectors::scalef_ps
#define _mm512_set1_epi32 in_vectors::set1_epi32
#define _mm512_set1_ps in_vectors::set1_ps
#define _mm512_slli_epi32 in_vectors::slli_epi32
#define _mm512_storeu_si512 in_vectors::storeu_si512
#define _mm512_stream_ps in_vectors::store_ps
#define _mm512_stream_si512 in_vectors::stream_si512
#define _mm256_mask_storeu_epi16 in_vectors::mask_storeu_epi16
#define _mm256_maskz_mov_epi16 in_vectors::maskz_mov_epi16
