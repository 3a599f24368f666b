// 4 floats: NEON of AArch64, with fused multiply-add.
#pragma once

#include "generic.h"

#ifdef __aarch64__
#include <arm_neon.h>

namespace elmo_fast::cpu {
namespace {

struct NeonVec : VecBase<NeonVec, 4> {
  static constexpr int rows = 8;  // 8 x 2 accumulators; with 10 or 12 GCC 12 spills

  static F set1(float x) { return vdupq_n_f32(x); }
  static F convert(I x) { return vcvtq_f32_s32(x); }
  static F fma(F a, F b, F c) { return vfmaq_f32(c, a, b); }
  static F fnma(F a, F b, F c) { return vfmsq_f32(c, a, b); }
  // Both return x when x is NaN, which vmaxq and vminq do not.
  static F at_least(F limit, F x) { return vbslq_f32(vcgtq_f32(limit, x), limit, x); }
  static F at_most(F limit, F x) { return vbslq_f32(vcltq_f32(limit, x), limit, x); }
  static F abs(F x) { return vabsq_f32(x); }
  static F copysign(F size, F sign) { return vbslq_f32(vdupq_n_u32(0x80000000u), sign, size); }
  static F if_less(F x, F limit, F yes, F no) { return vbslq_f32(vcltq_f32(x, limit), yes, no); }
  static I add_pairs(S a, S b) { return vpaddq_s32(vmull_s16(vget_low_s16(a), vget_low_s16(b)), vmull_high_s16(a, b)); }
#ifdef __ARM_FEATURE_DOTPROD
  // sum + signed bytes x signed bytes, four at a time
  static constexpr int dot_offset = 0;
  static I dot(I sum, I a, I b) {
    return vdotq_s32(sum, reinterpret_cast<int8x16_t>(a), reinterpret_cast<int8x16_t>(b));
  }
#endif
  static F scale(F x, F n) { return scale_by(x, reinterpret_cast<I>(vcvtnq_s32_f32(n))); }
};
}  // namespace
}  // namespace elmo_fast::cpu
#endif
