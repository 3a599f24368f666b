// sigmoid and tanh on vectors, for every float: denormal results, infinities, NaN. Include after engine.h and one
// vec_*.h. Measured over all 2^32 inputs (tests/native/activation_error.cpp): sigmoid <= 1.97 ulp, tanh <= 1.46 ulp.
#pragma once

#include <cstring>

namespace {

// exp(x) for x <= 0; below -104 it is 0.
inline Vec::F exp_nonpositive(Vec::F x) {
  const Vec::F rounder = Vec::set1(12582912.0f);  // 1.5 * 2^23: adding it rounds to a whole number
  x = Vec::at_least(Vec::set1(-104.0f), x);
  const Vec::F n = Vec::sub(Vec::fma(x, Vec::set1(1.44269504f), rounder), rounder);
  Vec::F r = Vec::fnma(n, Vec::set1(0.693359375f), x);  // ln 2 in two parts, the first exact for |n| < 2^15
  r = Vec::fnma(n, Vec::set1(-2.12194440e-4f), r);
  Vec::F q = Vec::set1(0.000198993192f);  // (exp(r) - 1 - r) / r^2, fitted on |r| <= ln(2) / 2
  q = Vec::fma(q, r, Vec::set1(0.00139336765f));
  q = Vec::fma(q, r, Vec::set1(0.00833329838f));
  q = Vec::fma(q, r, Vec::set1(0.041666463f));
  q = Vec::fma(q, r, Vec::set1(0.166666672f));
  q = Vec::fma(q, r, Vec::set1(0.5f));
  const Vec::F tail = Vec::fma(Vec::mul(r, r), q, r);
  return Vec::scale(Vec::add(Vec::set1(1.0f), tail), n);
}

// 1 / (1 + e) or e / (1 + e) with e = exp(-|x|), the rounding error of 1 + e put back.
inline Vec::F sigmoid(Vec::F x) {
  const Vec::F one = Vec::set1(1.0f);
  const Vec::F e = exp_nonpositive(Vec::sub(Vec::set1(0.0f), Vec::abs(x)));
  const Vec::F sum = Vec::add(one, e);
  const Vec::F lost = Vec::sub(e, Vec::sub(sum, one));
  return Vec::divide(Vec::if_less(x, Vec::set1(0.0f), e, one), sum, lost);
}

// A polynomial near zero, 1 - 2e / (1 + e) with e = exp(-2|x|) beyond.
inline Vec::F tanh(Vec::F x) {
  const Vec::F one = Vec::set1(1.0f);
  const Vec::F size = Vec::abs(x);
  const Vec::F e = exp_nonpositive(Vec::mul(Vec::set1(-2.0f), size));
  const Vec::F far = Vec::sub(one, Vec::divide(Vec::add(e, e), Vec::add(one, e)));
  const Vec::F square = Vec::mul(size, size);
  Vec::F p = Vec::set1(0.00229565497f);  // (tanh(x) - x) / x^3 in x^2, fitted on |x| <= 0.625
  p = Vec::fma(p, square, Vec::set1(-0.00834681652f));
  p = Vec::fma(p, square, Vec::set1(0.0217699111f));
  p = Vec::fma(p, square, Vec::set1(-0.0539593995f));
  p = Vec::fma(p, square, Vec::set1(0.133333042f));
  p = Vec::fma(p, square, Vec::set1(-0.333333343f));
  const Vec::F near = Vec::fma(Vec::mul(square, p), size, size);
  return Vec::copysign(Vec::if_less(size, Vec::set1(0.625f), near, far), x);
}

struct ExactActivations {
  static Vec::F sigmoid(Vec::F x) { return ::sigmoid(x); }
  static Vec::F tanh(Vec::F x) { return ::tanh(x); }
};

// y[k] = f(x[k]) through a padded copy of the last vector.
template <Vec::F (*Function)(Vec::F)>
void map_floats(const float* x, float* y, int64_t count) {
  for (int64_t k = 0; k < count; k += Vec::width) {
    const int64_t n = count - k < Vec::width ? count - k : Vec::width;
    float lane[Vec::width] = {};
    std::memcpy(lane, x + k, static_cast<size_t>(n) * sizeof(float));
    Vec::store(lane, Function(Vec::load(lane)));
    std::memcpy(y + k, lane, static_cast<size_t>(n) * sizeof(float));
  }
}

template <class Activations>
elmo_fast::cpu::ActivationEngine activation_engine() {
  return {map_floats<Activations::sigmoid>, map_floats<Activations::tanh>};
}

}  // namespace
