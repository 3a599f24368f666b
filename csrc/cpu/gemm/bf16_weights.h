// bf16 weights for fp32 products: half the memory of fp32, widened by a shift where they are multiplied.
#pragma once

#include "fp32.h"

namespace elmo_fast::cpu {

// The numbers of both vectors side by side in 32 bits, the first in the low half: no lane is crossed.
template <class Vec>
struct Bf16Columns : FloatProducts<Vec> {
  static constexpr int64_t bytes = Vec::width * sizeof(uint32_t);
  static constexpr int lines = Vec::width == 16 ? 2 : 1;
  static constexpr bool is_narrow = true;

  static void store(const float* from, char* to) {
    for (int64_t column = 0; column < Vec::width; ++column) {
      const uint32_t both = rounded(from[column]) | rounded(from[Vec::width + column]) << 16;
      std::memcpy(to + column * int64_t(sizeof both), &both, sizeof both);
    }
  }
  static void load(const char* from, typename Vec::F (&to)[2]) {
    const typename Vec::I both = Vec::load_bytes(from);
    to[0] = reinterpret_cast<typename Vec::F>(both << 16);
    to[1] = reinterpret_cast<typename Vec::F>(both & (typename Vec::I{} - 65536));
  }

 private:
  // bf16 bits: to nearest, ties to even; NaN stays NaN.
  static uint32_t rounded(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffff) > 0x7f800000) return bits >> 16 | 0x40;
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  }
};

template <class Vec>
using Bf16WeightsGemm = Fp32Gemm<Vec, Bf16Columns<Vec>>;

}  // namespace elmo_fast::cpu
