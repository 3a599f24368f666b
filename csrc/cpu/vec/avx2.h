// 8 floats: AVX2 and FMA.
#pragma once

#include "generic.h"

#ifdef __AVX2__
#include <immintrin.h>

namespace elmo_fast::cpu {
namespace {

struct Avx2Vec : VecBase<Avx2Vec, 8> {
  static constexpr int rows = 6;  // 6 x 2 accumulators leave 4 of 16 registers

  static F set1(float x) { return _mm256_set1_ps(x); }
  static F convert(I x) { return _mm256_cvtepi32_ps(reinterpret_cast<__m256i>(x)); }
  static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static F fnma(F a, F b, F c) { return _mm256_fnmadd_ps(a, b, c); }
  static F at_least(F limit, F x) { return _mm256_max_ps(limit, x); }
  static F at_most(F limit, F x) { return _mm256_min_ps(limit, x); }
  static F abs(F x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }
  static F copysign(F size, F sign) { return _mm256_or_ps(abs(size), _mm256_and_ps(_mm256_set1_ps(-0.0f), sign)); }
  static F if_less(F x, F limit, F yes, F no) { return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(x, limit, _CMP_LT_OQ)); }
  static I add_pairs(S a, S b) {
    return reinterpret_cast<I>(_mm256_madd_epi16(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
  }
#ifdef __AVXVNNI__
  // sum + unsigned bytes x signed bytes, four at a time
  static constexpr int dot_offset = 128;  // makes signed bytes unsigned
  static I dot(I sum, I a, I b) {
    return reinterpret_cast<I>(_mm256_dpbusd_avx_epi32(reinterpret_cast<__m256i>(sum), reinterpret_cast<__m256i>(a),
                                                       reinterpret_cast<__m256i>(b)));
  }
#endif
  static F scale(F x, F n) { return scale_by(x, reinterpret_cast<I>(_mm256_cvtps_epi32(n))); }
};
}  // namespace
}  // namespace elmo_fast::cpu
#endif
