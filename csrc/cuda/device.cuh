// The instructions that the persistent kernel is made of. Those of sm_90 fall away on older targets, where a plan has
// no clusters.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "plan.h"

#define ELMO_DEVICE __device__ __forceinline__

namespace elmo_fast {
namespace cuda {

// 16-bit operand types; conversions round to nearest even.
struct Fp16 {
  static ELMO_DEVICE uint16_t from(float x) { return __half_as_ushort(__float2half_rn(x)); }
  static ELMO_DEVICE float to(uint16_t x) { return __half2float(__ushort_as_half(x)); }
};
struct Bf16 {
  static ELMO_DEVICE uint16_t from(float x) { return __bfloat16_as_ushort(__float2bfloat16_rn(x)); }
  static ELMO_DEVICE float to(uint16_t x) { return __uint_as_float(uint32_t(x) << 16); }
};

// Registers of one thread.
template <class T, int count>
struct Tile {
  T r[count];
};
using TileA = Tile<uint32_t, 4>;
using TileB = Tile<uint32_t, 2>;
using TileC = Tile<float, 4>;

// c += a b on tensor cores, m16n8k16.
#define ELMO_MMA(type, name)                                                             \
  ELMO_DEVICE void mma(TileC& c, const TileA& a, const TileB& b, type) {                 \
    asm("mma.sync.aligned.m16n8k16.row.col.f32." name "." name                           \
        ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "                            \
        "{%0, %1, %2, %3};"                                                              \
        : "+f"(c.r[0]), "+f"(c.r[1]), "+f"(c.r[2]), "+f"(c.r[3])                         \
        : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "r"(b.r[0]), "r"(b.r[1])); \
  }
ELMO_MMA(Fp16, "f16")
ELMO_MMA(Bf16, "bf16")
#undef ELMO_MMA

// A tile of weights from global memory, past L1. Volatile: what is kept in registers is not loaded again.
ELMO_DEVICE TileA load_weights(const char* from) {
  TileA a;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(a.r[0]), "=r"(a.r[1]), "=r"(a.r[2]), "=r"(a.r[3])
               : "l"(from));
  return a;
}

#define ELMO_LOAD(type, name, instruction, constraint, ...)                               \
  ELMO_DEVICE type name(const type* from) {                                               \
    type value;                                                                           \
    asm volatile(instruction " %0, [%1];" : constraint(value) : "l"(from) : __VA_ARGS__); \
    return value;                                                                         \
  }
// Volatile as well: all of a step's inputs are on their way before the first is waited for.
ELMO_LOAD(uint16_t, load_input, "ld.global.nc.u16", "=h")
ELMO_LOAD(int32_t, load_index, "ld.global.nc.s32", "=r")
ELMO_LOAD(uint32_t, load_acquire, "ld.acquire.gpu.global.u32", "=r", "memory")
ELMO_LOAD(uint32_t, load_relaxed, "ld.relaxed.gpu.global.u32", "=r", "memory")
#undef ELMO_LOAD

ELMO_DEVICE TileA load_shared_weights(const char* from) {
  const uint4 words = *reinterpret_cast<const uint4*>(from);
  return {{words.x, words.y, words.z, words.w}};
}

// The right operand of 16 columns and 8 slots; `from` is slot 0's first column in shared memory.
ELMO_DEVICE TileB right_tile(const uint16_t* from, int stride, int lane) {
  const uint2 words = *reinterpret_cast<const uint2*>(from + lane / 4 * stride + lane % 4 * 4);
  return {{words.x, words.y}};
}

ELMO_DEVICE uint32_t shared_address(const void* local) { return uint32_t(__cvta_generic_to_shared(local)); }

// In one instruction, as the compiler does not see that it may.
ELMO_DEVICE void store_shared(void* to, const uint4& words) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(to)), "r"(words.x), "r"(words.y),
               "r"(words.z), "r"(words.w)
               : "memory");
}

// 16 bytes from L2 to shared memory, or zeros.
ELMO_DEVICE void copy_async(void* to, const void* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(there ? 16 : 0)
               : "memory");
}
ELMO_DEVICE void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// What other blocks of the launch wrote before a barrier: from L2.
ELMO_DEVICE float2 load_exchanged(const float* from) {
  float2 value;
  asm volatile("ld.global.cg.v2.f32 {%0, %1}, [%2];" : "=f"(value.x), "=f"(value.y) : "l"(from) : "memory");
  return value;
}

// A barrier of `threads` threads of the block; 0 is that of all of them.
ELMO_DEVICE void sync_threads(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

ELMO_DEVICE void add_release(uint32_t* to) {
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(to) : "memory");
}
ELMO_DEVICE void store_relaxed(uint32_t* to, uint32_t value) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}
ELMO_DEVICE int64_t nanoseconds_now() {
  int64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

// ---- clusters: `rank` is another block's number in the cluster, pointers are to this block's shared memory. To be
// called where `has_clusters` is true: older targets then drop them

#if __CUDA_ARCH__ >= 900
constexpr bool has_clusters = true;
#else
constexpr bool has_clusters = false;
#endif

ELMO_DEVICE uint32_t remote_address(const void* local, int rank) {
  uint32_t address;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(local)), "r"(rank));
  return address;
}
ELMO_DEVICE uint4 load_remote(uint32_t address) {
  uint4 words;
  asm volatile("ld.shared::cluster.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "r"(address)
               : "memory");
  return words;
}
ELMO_DEVICE void store_flag(uint32_t address, uint32_t value) {
  asm volatile("st.release.cluster.shared::cluster.u32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}
ELMO_DEVICE uint32_t load_flag(const uint32_t* from) {
  uint32_t value;
  asm volatile("ld.acquire.cluster.shared::cta.u32 %0, [%1];" : "=r"(value) : "r"(shared_address(from)) : "memory");
  return value;
}
// All threads of all blocks of the cluster.
ELMO_DEVICE void sync_cluster() {
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}

// ---- cells ----------------------------------------------------------------------------------------------------------

// Both within 2e-7 of the true value: much less than a 16-bit operand's rounding.
ELMO_DEVICE float exp2_approximate(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
ELMO_DEVICE float reciprocal_approximate(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
ELMO_DEVICE float sigmoid(float x) { return reciprocal_approximate(1.0f + exp2_approximate(-1.44269504f * x)); }
ELMO_DEVICE float tanh_of(float x) {
  return 1.0f - 2.0f * reciprocal_approximate(1.0f + exp2_approximate(2.88539008f * x));
}
// NaN passes.
ELMO_DEVICE float clipped(float x, float limit) { return x > limit ? limit : (x < -limit ? -limit : x); }

}  // namespace cuda
}  // namespace elmo_fast
