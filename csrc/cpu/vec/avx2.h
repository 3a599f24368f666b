// The vector type of the AVX2 translation unit: 8 floats. Anonymous namespace: see avx512.h.
#pragma once

#include <immintrin.h>

namespace elmo_fast::cpu {
namespace {

struct Avx2Vec {
  using F = __m256;
  static constexpr int width = 8;
  static constexpr int rows = 6;  // 6 x 2 accumulators leave 4 of 16 registers

  static F load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, F x) { _mm256_storeu_ps(p, x); }
  static F set1(float x) { return _mm256_set1_ps(x); }
  static F add(F a, F b) { return _mm256_add_ps(a, b); }
  static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  // a / (d + low) for d in [1, 2] and low below its last place; 1.5 - d / 2 is close enough to 1 / d.
  static F divide(F a, F d, F low) {
    const F q = divide(a, d);
    return fnma(mul(q, low), fnma(set1(0.5f), d, set1(1.5f)), q);
  }
  static F divide(F a, F d) { return _mm256_div_ps(a, d); }
  static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static F fnma(F a, F b, F c) { return _mm256_fnmadd_ps(a, b, c); }
  static F at_least(F limit, F x) { return _mm256_max_ps(limit, x); }
  static F at_most(F limit, F x) { return _mm256_min_ps(limit, x); }
  static F abs(F x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }
  static F copysign(F magnitude, F sign) {
    const F bit = _mm256_set1_ps(-0.0f);
    return _mm256_or_ps(_mm256_andnot_ps(bit, magnitude), _mm256_and_ps(bit, sign));
  }
  static F if_less(F x, F limit, F yes, F no) { return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(x, limit, _CMP_LT_OQ)); }
  // In two steps that stay normal, so that only the second one rounds.
  static F scale(F x, F n) {
    const __m256i whole = _mm256_cvtps_epi32(n);
    const __m256i half = _mm256_srai_epi32(whole, 1);
    return _mm256_mul_ps(_mm256_mul_ps(x, power(half)), power(_mm256_sub_epi32(whole, half)));
  }

 private:
  static F power(__m256i n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
  }
};

}  // namespace
}  // namespace elmo_fast::cpu
