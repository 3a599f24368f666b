// 16-bit operands: conversions that round to nearest even on both sides, and nothing else.
#pragma once

#include <cstring>

#include "portable.h"

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

namespace elmo_fast {
namespace cuda {

inline uint32_t bits_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

inline float float_of(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

// `value` without its last `count` bits, rounded to nearest even.
inline uint32_t rounded_off(uint32_t value, int count) {
  const uint32_t odd = value >> count & 1u, below_half = (1u << (count - 1)) - 1u;
  return (value + below_half + odd) >> count;
}

struct Fp16 {
  static ELMO_HD uint16_t from(float x) {
#ifdef __CUDA_ARCH__
    return __half_as_ushort(__float2half_rn(x));
#else
    const uint32_t bits = bits_of(x), sign = bits >> 16 & 0x8000u, size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) return uint16_t(0x7fffu);                // NaN
    if (size >= 0x477ff000u) return uint16_t(sign | 0x7c00u);        // 65520 and more: infinity
    if (size >= 0x38800000u) return uint16_t(sign | rounded_off(size - 0x38000000u, 13));
    if (size < 0x33000000u) return uint16_t(sign);                   // below half the smallest denormal
    const int shift = 126 - int(size >> 23);                         // 14 to 24
    return uint16_t(sign | rounded_off((size & 0x7fffffu) | 0x800000u, shift));
#endif
  }

  static inline float to(uint16_t half) {
    const uint32_t sign = uint32_t(half & 0x8000u) << 16, size = half & 0x7fffu;
    if (size >= 0x7c00u) return float_of(sign | 0x7f800000u | (size & 0x3ffu) << 13);
    if (size >= 0x400u) return float_of(sign | ((size << 13) + 0x38000000u));
    const float tiny = float(size) * 5.9604644775390625e-8f;  // 2^-24
    return sign ? -tiny : tiny;
  }
};

struct Bf16 {
  static ELMO_HD uint16_t from(float x) {
#ifdef __CUDA_ARCH__
    return __bfloat16_as_ushort(__float2bfloat16_rn(x));
#else
    const uint32_t bits = bits_of(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return uint16_t(0x7fffu);
    return uint16_t(rounded_off(bits, 16));
#endif
  }

  static inline float to(uint16_t value) { return float_of(uint32_t(value) << 16); }
};

}  // namespace cuda
}  // namespace elmo_fast
