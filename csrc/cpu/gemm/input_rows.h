// How rows of x W + B are stored between the input GEMM and the cells. `put` writes two vectors to a cache line.
#pragma once

#include "../vec/avx512.h"

namespace elmo_fast::cpu {

template <class Vec>
struct FloatRows {
  using Value = float;
  static typename Vec::F get(const float* from) { return Vec::load(from); }
  static void put(typename Vec::F x, typename Vec::F y, float* to) {
    Vec::store(to, x);
    Vec::store(to + Vec::width, y);
  }
};

#ifdef __AVX512F__
// Internal linkage, as for Avx512Vec.
namespace {

// In fp16: an eighth of the rounding error of bf16 operands, at half the memory traffic of fp32. `put` bypasses the
// caches, since rows are read only after the whole chunk.
struct HalfRows {
  using Value = uint16_t;
  static __m512 get(const uint16_t* from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }
  static void put(__m512 x, __m512 y, uint16_t* to) {
    const __m256i low = _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT);
    const __m256i high = _mm512_cvtps_ph(y, _MM_FROUND_TO_NEAREST_INT);
    const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), both);
  }
};

// As HalfRows, in fp32.
struct StreamedFloatRows {
  using Value = float;
  static __m512 get(const float* from) { return _mm512_load_ps(from); }
  static void put(__m512 x, __m512 y, float* to) {
    _mm512_stream_ps(to, x);
    _mm512_stream_ps(to + 16, y);
  }
};

}  // namespace
#endif

}  // namespace elmo_fast::cpu
