// Products of pairs of bf16 with fp32 sums (vdpbf16ps): two k at a time in the register tiles of fp32.h.
//
// A pair is 32 bits, the first of the two in the low half: right operand [k / 2, panel_width] pairs, left operand
// [k / 2, rows of the block] pairs. k is padded with a zero in both. Denormals are zero, as the instruction reads them.
#pragma once

#include "../vec/avx512.h"
#include "fp32.h"

namespace elmo_fast::cpu {
namespace {

struct Bf16Pairs {
  using Vec = Avx512Vec;
  using Activations = ApproximateActivations<Vec, false>;
  static constexpr int64_t depth = 2;
  static constexpr int64_t bytes = 2 * Vec::width * sizeof(uint32_t);
  static constexpr int lines = 4;
  static constexpr bool is_narrow = false;

  // from [2 of k, 2 vectors]
  static void store(const float* from, char* to) {
    for (int v = 0; v < 2; ++v, from += Vec::width, to += sizeof(__m512i))
      _mm512_storeu_si512(
          to, _mm512_or_si512(bits(Vec::load(from)), _mm512_slli_epi32(bits(Vec::load(from + 2 * Vec::width)), 16)));
  }
  static void load(const char* from, Vec::F (&to)[2]) { FloatColumns<Vec>::load(from, to); }
  static Vec::F add(Vec::F sum, Vec::F a, Vec::F b) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
  }
  static void put_left(const float* values, int64_t count, int rows, float* to) {
    for (; count > 0; values += Vec::width, count -= Vec::width) {
      const auto some = static_cast<__mmask16>((1 << smaller(count, Vec::width)) - 1);
      alignas(32) float pairs[Vec::width / 2];
      _mm256_store_si256(reinterpret_cast<__m256i*>(pairs),
                         reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(some, values))));
      for (int64_t pair = 0; 2 * pair < smaller(count, Vec::width); ++pair, to += rows)
        std::memcpy(to, pairs + pair, sizeof *pairs);
    }
  }

 private:
  static __m512i bits(__m512 x) { return _mm512_cvtepu16_epi32(reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x))); }
};

using Bf16DotsGemm = Fp32Gemm<Avx512Vec, Bf16Pairs>;

}  // namespace
}  // namespace elmo_fast::cpu
