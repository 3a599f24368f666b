// 16-bit operands: conversions that round to nearest even, on the host and on the device.
#pragma once

#include <cstring>

#include "layout.h"

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

namespace elmo_fast {
namespace cuda {

// `value` without its last `count` bits, rounded to nearest even.
inline uint32_t rounded_off(uint32_t value, int count) {
  const uint32_t odd = value >> count & 1u, below_half = (1u << (count - 1)) - 1u;
  return (value + below_half + odd) >> count;
}

inline uint32_t bits_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

struct Fp16 {
  static ELMO_HD uint16_t from(float x) {
#ifdef __CUDA_ARCH__
    return __half_as_ushort(__float2half_rn(x));
#else
    const uint32_t bits = bits_of(x), sign = bits >> 16 & 0x8000u, size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) return uint16_t(0x7fffu);          // NaN
    if (size >= 0x477ff000u) return uint16_t(sign | 0x7c00u);  // 65520 and more: infinity
    if (size >= 0x38800000u) return uint16_t(sign | rounded_off(size - 0x38000000u, 13));
    if (size < 0x33000000u) return uint16_t(sign);             // below half the smallest denormal
    const int shift = 126 - int(size >> 23);                   // 14 to 24
    return uint16_t(sign | rounded_off((size & 0x7fffffu) | 0x800000u, shift));
#endif
  }
#ifdef __CUDACC__
  static __device__ __forceinline__ float to(uint16_t x) { return __half2float(__ushort_as_half(x)); }
#endif
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
#ifdef __CUDACC__
  static __device__ __forceinline__ float to(uint16_t x) { return __uint_as_float(uint32_t(x) << 16); }
#endif
};

}  // namespace cuda
}  // namespace elmo_fast
