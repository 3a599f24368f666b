// 16 floats: AVX-512 F, BW, DQ and VL.
#pragma once

#include "generic.h"

#ifdef __AVX512F__
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"  // GCC 12 reports its own _mm512_undefined_ps()
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

namespace elmo_fast::cpu {
namespace {

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
  static F convert(I x) { return _mm512_cvtepi32_ps(reinterpret_cast<__m512i>(x)); }
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
  static I add_pairs(S a, S b) {
    return reinterpret_cast<I>(_mm512_madd_epi16(reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
  }
#ifdef __AVX512VNNI__
  // sum + unsigned bytes x signed bytes, four at a time
  static constexpr int dot_offset = 128;  // makes signed bytes unsigned
  static I dot(I sum, I a, I b) {
    return reinterpret_cast<I>(_mm512_dpbusd_epi32(reinterpret_cast<__m512i>(sum), reinterpret_cast<__m512i>(a),
                                                   reinterpret_cast<__m512i>(b)));
  }
#endif
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
}  // namespace
}  // namespace elmo_fast::cpu
#endif
