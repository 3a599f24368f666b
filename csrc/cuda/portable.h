// Words that nvcc and a host compiler read alike.
#pragma once

#include <cstddef>
#include <cstdint>

#ifdef __CUDACC__
#define ELMO_HD __host__ __device__ __forceinline__
#define ELMO_UNROLL _Pragma("unroll")
#define ELMO_UNROLL4 _Pragma("unroll 4")
#define ELMO_UNROLL8 _Pragma("unroll 8")
#else
#define ELMO_HD inline
#define ELMO_UNROLL
#define ELMO_UNROLL4
#define ELMO_UNROLL8
#endif

namespace elmo_fast {
namespace cuda {

template <class T>
constexpr ELMO_HD T divided_up(T a, T b) {
  return (a + b - 1) / b;
}

constexpr ELMO_HD int smaller(int a, int b) { return a < b ? a : b; }
constexpr ELMO_HD int larger(int a, int b) { return a > b ? a : b; }

// 16 bytes, moved at once.
struct alignas(16) Words4 {
  uint32_t word[4];
};

}  // namespace cuda
}  // namespace elmo_fast
