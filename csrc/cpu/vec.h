// The vector types of the translation units: GenericVec 4 floats, which become SSE2 or NEON, Avx2Vec 8, Avx512Vec 16.
//
// Anonymous namespace on purpose: it gives every template on these types internal linkage, so that code compiled with
// the flags of one instruction set is never shared with other objects.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"  // GCC 12 reports its own _mm512_undefined_ps()
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace elmo_fast::cpu {
namespace {

// What the compiler's own vector extension says the same way at every width.
template <class Vec, int Width>
struct VecBase {
  typedef float F __attribute__((vector_size(4 * Width)));
  typedef int32_t I __attribute__((vector_size(4 * Width)));
  static constexpr int width = Width;

  static F load(const float* p) {
    F x;
    std::memcpy(&x, p, sizeof x);
    return x;
  }
  static void store(float* p, F x) { std::memcpy(p, &x, sizeof x); }
  static F divide(F a, F d) { return a / d; }
  // a / (d + low) for d in [1, 2] and low below its last place; 1.5 - d / 2 is close enough to 1 / d.
  static F divide(F a, F d, F low) {
    const F q = a / d;
    return Vec::fnma(q * low, Vec::fnma(Vec::set1(0.5f), d, Vec::set1(1.5f)), q);
  }

 protected:
  // x * 2^n for whole n in [-150, 0], in two steps that stay normal, so that only the second one rounds.
  static F scale_by(F x, I n) { return x * power(n >> 1) * power(n - (n >> 1)); }
  static F power(I n) { return reinterpret_cast<F>((n + 127) << 23); }
};

struct GenericVec : VecBase<GenericVec, 4> {
  static constexpr int rows = 5;  // 5 x 2 accumulators and temporaries of multiply and add in 16 registers

  static F set1(float x) { return F{x, x, x, x}; }
  static F fma(F a, F b, F c) { return a * b + c; }
  static F fnma(F a, F b, F c) { return c - a * b; }
  // Both return x when x is NaN.
  static F at_least(F limit, F x) { return choose(limit > x, limit, x); }
  static F at_most(F limit, F x) { return choose(limit < x, limit, x); }
  static F abs(F x) { return reinterpret_cast<F>(reinterpret_cast<I>(x) & magnitude()); }
  static F copysign(F size, F sign) {
    return reinterpret_cast<F>((reinterpret_cast<I>(size) & magnitude()) | (reinterpret_cast<I>(sign) & ~magnitude()));
  }
  // x < limit ? yes : no; a NaN in x takes `no`.
  static F if_less(F x, F limit, F yes, F no) { return choose(x < limit, yes, no); }
  // Adding 1.5 * 2^23 puts n into the low bits.
  static F scale(F x, F n) {
    const F rounder = set1(12582912.0f);
    return scale_by(x, reinterpret_cast<I>(n + rounder) - reinterpret_cast<I>(rounder));
  }

 private:
  static I magnitude() { return I{} + 0x7fffffff; }
  static F choose(I mask, F yes, F no) {
    return reinterpret_cast<F>((mask & reinterpret_cast<I>(yes)) | (~mask & reinterpret_cast<I>(no)));
  }
};

#ifdef __AVX2__
struct Avx2Vec : VecBase<Avx2Vec, 8> {
  static constexpr int rows = 6;  // 6 x 2 accumulators leave 4 of 16 registers

  static F set1(float x) { return _mm256_set1_ps(x); }
  static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static F fnma(F a, F b, F c) { return _mm256_fnmadd_ps(a, b, c); }
  static F at_least(F limit, F x) { return _mm256_max_ps(limit, x); }
  static F at_most(F limit, F x) { return _mm256_min_ps(limit, x); }
  static F abs(F x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }
  static F copysign(F size, F sign) { return _mm256_or_ps(abs(size), _mm256_and_ps(_mm256_set1_ps(-0.0f), sign)); }
  static F if_less(F x, F limit, F yes, F no) { return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(x, limit, _CMP_LT_OQ)); }
  static F scale(F x, F n) { return scale_by(x, reinterpret_cast<I>(_mm256_cvtps_epi32(n))); }
};
#endif

#ifdef __AVX512F__
struct Avx512Vec : VecBase<Avx512Vec, 16> {
  static constexpr int rows = 14;  // a register tile of 14 x 2 accumulators leaves 4 of 32 registers

  static F set1(float x) { return _mm512_set1_ps(x); }
  // Two corrections of the 14-bit reciprocal, half the cost of a division.
  static F divide(F a, F d) {
    const F inverse = refined_inverse(d), q = a * inverse;
    return fma(fnma(q, d, a), inverse, q);
  }
  static F divide(F a, F d, F low) {
    const F inverse = refined_inverse(d), q = a * inverse;
    return fma(fnma(q, low, fnma(q, d, a)), inverse, q);
  }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F fnma(F a, F b, F c) { return _mm512_fnmadd_ps(a, b, c); }
  // -(a b) - c
  static F fnms(F a, F b, F c) { return _mm512_fnmsub_ps(a, b, c); }
  static F at_least(F limit, F x) { return _mm512_max_ps(limit, x); }
  static F at_most(F limit, F x) { return _mm512_min_ps(limit, x); }
  static F abs(F x) { return _mm512_abs_ps(x); }
  static F copysign(F size, F sign) {
    const __m512i bit = _mm512_set1_epi32(static_cast<int>(0x80000000u));
    return _mm512_castsi512_ps(_mm512_or_si512(_mm512_andnot_si512(bit, _mm512_castps_si512(size)),
                                               _mm512_and_si512(bit, _mm512_castps_si512(sign))));
  }
  static F if_less(F x, F limit, F yes, F no) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, limit, _CMP_LT_OQ), no, yes);
  }
  // 1 / x with 14 bits.
  static F approximate_inverse(F x) { return _mm512_rcp14_ps(x); }
  // x < limit or NaN in it ? a b + c : 0.
  static F fma_below(F x, F limit, F a, F b, F c) {
    return _mm512_maskz_fmadd_ps(_mm512_cmp_ps_mask(x, limit, _CMP_NGE_UQ), a, b, c);
  }
  static F scale(F x, F n) { return _mm512_scalef_ps(x, n); }

 private:
  static F refined_inverse(F x) {
    const F inverse = approximate_inverse(x);
    return fma(inverse, fnma(x, inverse, set1(1.0f)), inverse);
  }
};
#endif

}  // namespace
}  // namespace elmo_fast::cpu
