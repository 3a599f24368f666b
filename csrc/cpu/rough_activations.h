// sigmoid and tanh for gates that were summed from 16-bit operands, in two thirds of the time of activations.h, or in
// half of it without refinement. Include after vec_avx512.h and gemm_tile.h.
//
// exp goes to base 2: 2^f = 1 + f q(f), |f| <= 1/2, with `Terms` coefficients of q, fitted for the relative error of
// f q(f), so that tanh keeps its relative error near zero. Refined reciprocals have one correction of the 14-bit ones.
// Measured over every fifth float (tests/native/activation_error.cpp), largest error relative to a result of at least
// 2^-126: RoughActivations<4, false> 5.5e-5 for sigmoid and 4.4e-5 for tanh, <5, true> 1.4e-6 and 8.2e-7.
#pragma once

namespace {

template <int Terms, bool Refined>
struct RoughActivations {
  // 1 / (1 + exp(-x)); 0 below -90.
  static Vec::F sigmoid(Vec::F x) {
    x = Vec::at_least(Vec::set1(-90.0f), Vec::at_most(Vec::set1(90.0f), x));
    const Power power = negative_power(x, log2_e);
    const Vec::F sum = Vec::add(one(), Vec::scale(Vec::add(one(), power.tail), power.whole));
    const Vec::F inverse = _mm512_rcp14_ps(sum);
    if (!Refined) return inverse;
    const __mmask16 finite = _mm512_cmp_ps_mask(sum, Vec::set1(0x1p127f), _CMP_NGE_UQ);
    return _mm512_maskz_fmadd_ps(finite, Vec::fnma(sum, inverse, one()), inverse, inverse);
  }

  // -m / (2 + m) with m = exp(-2 |x|) - 1.
  static Vec::F tanh(Vec::F x) {
    const Power power = negative_power(Vec::at_most(Vec::set1(20.0f), Vec::abs(x)), 2 * log2_e);
    const Vec::F scale = Vec::scale(one(), power.whole);
    const Vec::F m = Vec::fma(scale, power.tail, Vec::sub(scale, one()));
    const Vec::F sum = Vec::add(Vec::set1(2.0f), m);
    Vec::F inverse = _mm512_rcp14_ps(sum);
    if (Refined) inverse = Vec::fma(Vec::fnma(sum, inverse, one()), inverse, inverse);
    return Vec::copysign(Vec::mul(m, inverse), x);
  }

 private:
  // 2^whole (1 + tail)
  struct Power {
    Vec::F tail, whole;
  };

  static constexpr float log2_e = 1.44269504f;

  static Vec::F one() { return Vec::set1(1.0f); }

  // 2^(-x scale)
  static Power negative_power(Vec::F x, float scale) {
    const Vec::F rounder = Vec::set1(12582912.0f);  // 1.5 * 2^23: adding it rounds to a whole number
    const Vec::F whole = Vec::sub(Vec::fnma(x, Vec::set1(scale), rounder), rounder);
    const Vec::F f = _mm512_fnmsub_ps(x, Vec::set1(scale), whole);
    constexpr const float* q = Terms == 4 ? four : five;
    Vec::F sum = Vec::set1(q[Terms - 1]);
    ELMO_FAST_UNROLL
    for (int k = Terms - 2; k >= 0; --k) sum = Vec::fma(sum, f, Vec::set1(q[k]));
    return {Vec::mul(f, sum), whole};
  }

  static_assert(Terms == 4 || Terms == 5, "coefficients are there for 4 and 5 terms");
  static constexpr float four[4] = {0.693136871f, 0.240232527f, 0.0558374226f, 0.00961811002f};
  static constexpr float five[5] = {0.693147123f, 0.240223512f, 0.0555050038f, 0.00966626499f, 0.00133335381f};
};

}  // namespace
