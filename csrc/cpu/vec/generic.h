// The vector type of the generic translation unit: 4 floats in the compiler's own vector extension, which becomes
// SSE2 or NEON. Anonymous namespace: see avx512.h.
#pragma once

#include <cstdint>
#include <cstring>

namespace elmo_fast::cpu {
namespace {

struct GenericVec {
  typedef float F __attribute__((vector_size(16)));
  typedef int32_t I __attribute__((vector_size(16)));
  static constexpr int width = 4;
  static constexpr int rows = 5;  // 5 x 2 accumulators and temporaries of multiply and add in 16 registers

  static F load(const float* p) {
    F x;
    std::memcpy(&x, p, sizeof x);
    return x;
  }
  static void store(float* p, F x) { std::memcpy(p, &x, sizeof x); }
  static F set1(float x) { return F{x, x, x, x}; }
  static F add(F a, F b) { return a + b; }
  static F sub(F a, F b) { return a - b; }
  static F mul(F a, F b) { return a * b; }
  // a / (d + low) for d in [1, 2] and low below its last place; 1.5 - d / 2 is close enough to 1 / d.
  static F divide(F a, F d, F low) {
    const F q = divide(a, d);
    return fnma(mul(q, low), fnma(set1(0.5f), d, set1(1.5f)), q);
  }
  static F divide(F a, F d) { return a / d; }
  static F fma(F a, F b, F c) { return a * b + c; }
  static F fnma(F a, F b, F c) { return c - a * b; }
  static F at_least(F limit, F x) { return choose(limit > x, limit, x); }
  static F at_most(F limit, F x) { return choose(limit < x, limit, x); }
  static F abs(F x) { return reinterpret_cast<F>(reinterpret_cast<I>(x) & magnitude()); }
  static F copysign(F size, F sign) {
    return reinterpret_cast<F>((reinterpret_cast<I>(size) & magnitude()) | (reinterpret_cast<I>(sign) & ~magnitude()));
  }
  static F if_less(F x, F limit, F yes, F no) { return choose(x < limit, yes, no); }
  // In two steps that stay normal, so that only the second one rounds. Adding 1.5 * 2^23 puts n into the low bits.
  static F scale(F x, F n) {
    const F rounder = set1(12582912.0f);
    const I whole = reinterpret_cast<I>(n + rounder) - reinterpret_cast<I>(rounder);
    const I half = whole >> 1;
    return x * power(half) * power(whole - half);
  }

 private:
  static I magnitude() { return I{0x7fffffff, 0x7fffffff, 0x7fffffff, 0x7fffffff}; }
  static F power(I n) { return reinterpret_cast<F>((n + 127) << 23); }
  static F choose(I mask, F yes, F no) {
    return reinterpret_cast<F>((mask & reinterpret_cast<I>(yes)) | (~mask & reinterpret_cast<I>(no)));
  }
};

}  // namespace
}  // namespace elmo_fast::cpu
