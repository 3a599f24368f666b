// sigmoid and tanh on vectors: within 2 ulp for `highest`, and cheaper approximations for gates summed from 16-bit
// operands. tests/ops/test_projected_lstm.py tests their errors.
#pragma once

namespace elmo_fast::cpu {

// The sum of coefficients[k] x^k.
template <class Vec, int Terms>
inline __attribute__((always_inline)) typename Vec::F polynomial(const float (&coefficients)[Terms],
                                                                 typename Vec::F x) {
  typename Vec::F sum = Vec::set1(coefficients[Terms - 1]);
#pragma GCC unroll 8
  for (int k = Terms - 2; k >= 0; --k) sum = Vec::fma(sum, x, Vec::set1(coefficients[k]));
  return sum;
}

// For every float, also denormal results, infinities and NaN. Over all 2^32 inputs: sigmoid <= 1.97 ulp, tanh <= 1.46.
template <class Vec>
struct ExactActivations {
  using F = typename Vec::F;

  // 1 / (1 + e) or e / (1 + e) with e = exp(-|x|), corrected by the rounding error of 1 + e.
  static F sigmoid(F x) {
    const F one = Vec::set1(1.0f);
    const F e = exp_nonpositive(Vec::set1(0.0f) - Vec::abs(x));
    const F sum = one + e;
    const F lost = e - (sum - one);
    return Vec::divide(Vec::if_less(x, Vec::set1(0.0f), e, one), sum, lost);
  }

  // A polynomial near zero, 1 - 2e / (1 + e) with e = exp(-2|x|) beyond.
  static F tanh(F x) {
    const F one = Vec::set1(1.0f);
    const F size = Vec::abs(x);
    const F e = exp_nonpositive(Vec::set1(-2.0f) * size);
    const F far = one - Vec::divide(e + e, one + e);
    const F square = size * size;
    // (tanh(x) - x) / x^3 in x^2, fitted on |x| <= 0.625
    constexpr float fitted[] = {-0.333333343f, 0.133333042f,    -0.0539593995f,
                                0.0217699111f, -0.00834681652f, 0.00229565497f};
    const F p = polynomial<Vec>(fitted, square);
    const F near = Vec::fma(square * p, size, size);
    return Vec::copysign(Vec::if_less(size, Vec::set1(0.625f), near, far), x);
  }

 private:
  // exp(x) for x <= 0; below -104 it is 0.
  static F exp_nonpositive(F x) {
    const F rounder = Vec::set1(12582912.0f);  // 1.5 * 2^23: adding it rounds to a whole number
    x = Vec::at_least(Vec::set1(-104.0f), x);
    const F n = Vec::fma(x, Vec::set1(1.44269504f), rounder) - rounder;
    F r = Vec::fnma(n, Vec::set1(0.693359375f), x);  // ln 2 in two parts, the first exact for |n| < 2^15
    r = Vec::fnma(n, Vec::set1(-2.12194440e-4f), r);
    // (exp(r) - 1 - r) / r^2, fitted on |r| <= ln(2) / 2
    constexpr float fitted[] = {0.5f, 0.166666672f, 0.041666463f, 0.00833329838f, 0.00139336765f, 0.000198993192f};
    const F tail = Vec::fma(r * r, polynomial<Vec>(fitted, r), r);
    return Vec::scale(Vec::set1(1.0f) + tail, n);
  }
};

// For AVX-512: two thirds of the time of ExactActivations, or half of it without refinement.
//
// exp goes to base 2: 2^f = 1 + f q(f), |f| <= 1/2, with q fitted for the relative error of f q(f), so that tanh keeps
// its relative error near zero. Refined: one more coefficient of q, and one correction of the 14-bit reciprocals.
// Over every fifth float, largest error relative to a result of at least 2^-126: 5.5e-5 for sigmoid and 4.4e-5 for
// tanh, refined 1.4e-6 and 8.2e-7. Always inlined: a call would move vectors out of their registers.
template <class Vec, bool Refined>
struct ApproximateActivations {
  using F = typename Vec::F;

  // 1 / (1 + exp(-x)); 0 below -90.
  static inline __attribute__((always_inline)) F sigmoid(F x) {
    x = Vec::at_least(Vec::set1(-90.0f), Vec::at_most(Vec::set1(90.0f), x));
    const Power power = negative_power(x, log2_e);
    const F sum = one() + Vec::scale(one() + power.tail, power.whole);
    const F inverse = Vec::approximate_inverse(sum);
    if (!Refined) return inverse;
    return Vec::fma_below(sum, Vec::set1(0x1p127f), Vec::fnma(sum, inverse, one()), inverse, inverse);
  }

  // -m / (2 + m) with m = exp(-2 |x|) - 1.
  static inline __attribute__((always_inline)) F tanh(F x) {
    const Power power = negative_power(Vec::at_most(Vec::set1(20.0f), Vec::abs(x)), 2 * log2_e);
    const F scale = Vec::scale(one(), power.whole);
    const F m = Vec::fma(scale, power.tail, scale - one());
    const F sum = Vec::set1(2.0f) + m;
    F inverse = Vec::approximate_inverse(sum);
    if (Refined) inverse = Vec::fma(Vec::fnma(sum, inverse, one()), inverse, inverse);
    return Vec::copysign(m * inverse, x);
  }

 private:
  // 2^whole (1 + tail)
  struct Power {
    F tail, whole;
  };

  static constexpr float log2_e = 1.44269504f;

  static F one() { return Vec::set1(1.0f); }

  // 2^(-x scale)
  static Power negative_power(F x, float scale) {
    const F rounder = Vec::set1(12582912.0f);  // 1.5 * 2^23: adding it rounds to a whole number
    const F whole = Vec::fnma(x, Vec::set1(scale), rounder) - rounder;
    const F f = Vec::fnms(x, Vec::set1(scale), whole);
    constexpr float four[] = {0.693136871f, 0.240232527f, 0.0558374226f, 0.00961811002f};
    constexpr float five[] = {0.693147123f, 0.240223512f, 0.0555050038f, 0.00966626499f, 0.00133335381f};
    return {f * (Refined ? polynomial<Vec>(five, f) : polynomial<Vec>(four, f)), whole};
  }
};

}  // namespace elmo_fast::cpu
