// The vector types of the translation units: GenericVec 4 floats, compiled to SSE2 or NEON, NeonVec 4, Avx2Vec 8,
// Avx512Vec 16. This file has their base class and GenericVec.
//
// Anonymous namespace on purpose: it gives every template on these types internal linkage, so that code compiled with
// the flags of one instruction set is never shared with other objects.
#pragma once

#include <cstdint>
#include <cstring>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace elmo_fast::cpu {
namespace {

// Operations that the compiler's vector extension expresses alike at every width.
template <class Vec, int Width>
struct VecBase {
  typedef float F __attribute__((vector_size(4 * Width)));
  typedef int32_t I __attribute__((vector_size(4 * Width)));
  typedef int16_t S __attribute__((vector_size(4 * Width)));
  static constexpr int width = Width;

  static F load(const float* p) {
    F x;
    std::memcpy(&x, p, sizeof x);
    return x;
  }
  static void store(float* p, F x) { std::memcpy(p, &x, sizeof x); }
  static I load_bytes(const char* p) {
    I x;
    std::memcpy(&x, p, sizeof x);
    return x;
  }
  // Four bytes, again and again.
  static I repeat(const char* p) {
    int32_t x;
    std::memcpy(&x, p, sizeof x);
    return I{} + x;
  }
  static F divide(F a, F d) { return a / d; }
  // a / (d + low) for d in [1, 2] and low below its last place; 1.5 - d / 2 is close enough to 1 / d.
  static F divide(F a, F d, F low) {
    const F q = a / d;
    return Vec::fnma(q * low, Vec::fnma(Vec::set1(0.5f), d, Vec::set1(1.5f)), q);
  }

 protected:
  // x * 2^n for integer n in [-150, 0], in two products with normal factors, so that only the second product rounds.
  static F scale_by(F x, I n) { return x * power(n >> 1) * power(n - (n >> 1)); }
  static F power(I n) { return reinterpret_cast<F>((n + 127) << 23); }
};

struct GenericVec : VecBase<GenericVec, 4> {
  static constexpr int rows = 5;  // 5 x 2 accumulators and temporaries of multiply and add in 16 registers

  static F set1(float x) { return F{x, x, x, x}; }
#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ < 9
  static F convert(I x) { return F{float(x[0]), float(x[1]), float(x[2]), float(x[3])}; }
#else
  static F convert(I x) { return __builtin_convertvector(x, F); }
#endif
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
  // Products of 16-bit numbers, added in pairs.
  static I add_pairs(S a, S b) {
#ifdef __SSE2__
    return reinterpret_cast<I>(_mm_madd_epi16(reinterpret_cast<__m128i>(a), reinterpret_cast<__m128i>(b)));
#else
    const I x = reinterpret_cast<I>(a), y = reinterpret_cast<I>(b);
    return (x >> 16) * (y >> 16) + (x << 16 >> 16) * (y << 16 >> 16);
#endif
  }

 private:
  static I magnitude() { return I{} + 0x7fffffff; }
  static F choose(I mask, F yes, F no) {
    return reinterpret_cast<F>((mask & reinterpret_cast<I>(yes)) | (~mask & reinterpret_cast<I>(no)));
  }
};

}  // namespace
}  // namespace elmo_fast::cpu
