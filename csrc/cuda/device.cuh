// PTX instructions of the persistent kernel as functions. Those of sm_90 are dropped on older targets, where a plan has
// no clusters.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "plan.h"

#define ELMO_DEVICE __device__ __forceinline__

namespace elmo_fast::cuda {

// fp16 values as bits; the conversion from float rounds to nearest even.
ELMO_DEVICE uint16_t to_half(float x) { return __half_as_ushort(__float2half_rn(x)); }
ELMO_DEVICE float to_float(uint16_t x) { return __half2float(__ushort_as_half(x)); }

// A thread's registers of a tile.
using TileA = uint4;
using TileB = uint2;
struct TileC {
  float r[4];
};

// c += a b on tensor cores, m16n8k16. Volatile: the products with a part of h, which wait for their loads of it, are
// issued before the arrival that lets others overwrite the part.
ELMO_DEVICE void mma(TileC& c, const TileA& a, const TileB& b) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c.r[0]), "+f"(c.r[1]), "+f"(c.r[2]), "+f"(c.r[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b.x), "r"(b.y));
}

// Macros that define functions of a single instruction: with a result (`how` is asm or asm volatile), with four words,
// with none.
#define ELMO_VALUE(how, type, declaration, instruction, constraint, ...) \
  ELMO_DEVICE type declaration {                                         \
    type value;                                                          \
    how(instruction : constraint(value) : __VA_ARGS__);                  \
    return value;                                                        \
  }
#define ELMO_WORDS(declaration, instruction, ...)                                                                    \
  ELMO_DEVICE uint4 declaration {                                                                                    \
    uint4 w;                                                                                                         \
    asm volatile(instruction " {%0, %1, %2, %3}, [%4];" : "=r"(w.x), "=r"(w.y), "=r"(w.z), "=r"(w.w) : __VA_ARGS__); \
    return w;                                                                                                        \
  }
#define ELMO_EFFECT(declaration, instruction, ...) \
  ELMO_DEVICE void declaration { asm volatile(instruction::__VA_ARGS__ : "memory"); }

// Loads a tile of weights from global memory without L1. Volatile: weights kept in registers are not loaded again.
ELMO_WORDS(load_weights(const char* from), "ld.global.nc.L1::no_allocate.v4.u32", "l"(from))
// The input projections of a cell.
struct Inputs {
  uint16_t gates[4];
};
// Volatile as well: the loads of all inputs of a step are issued before the first result is used.
ELMO_DEVICE Inputs load_input(const uint16_t* from) {
  Inputs z;
  asm volatile("ld.global.nc.v4.u16 {%0, %1, %2, %3}, [%4];"
               : "=h"(z.gates[0]), "=h"(z.gates[1]), "=h"(z.gates[2]), "=h"(z.gates[3])
               : "l"(from));
  return z;
}
ELMO_VALUE(asm volatile, int32_t, load_index(const int32_t* from), "ld.global.nc.s32 %0, [%1];", "=r", "l"(from))

ELMO_DEVICE TileA load_shared_weights(const char* from) { return *reinterpret_cast<const TileA*>(from); }

// The right operand of 16 columns and 8 slots; `from` is slot 0's first column in shared memory.
ELMO_DEVICE TileB right_tile(const uint16_t* from, int stride, int lane) {
  return *reinterpret_cast<const TileB*>(from + lane / 4 * stride + lane % 4 * 4);
}

ELMO_DEVICE uint32_t shared_address(const void* local) { return uint32_t(__cvta_generic_to_shared(local)); }

// A single instruction, where the compiler would use several.
ELMO_EFFECT(store_shared(void* to, const uint4& words), "st.shared.v4.u32 [%0], {%1, %2, %3, %4};",
            "r"(shared_address(to)), "r"(words.x), "r"(words.y), "r"(words.z), "r"(words.w))

// Copies 16 bytes from L2 to shared memory, or writes zeros unless `there`.
ELMO_EFFECT(copy_async(void* to, const void* from, bool there), "cp.async.cg.shared.global [%0], [%1], 16, %2;",
            "r"(shared_address(to)), "l"(from), "r"(there ? 16 : 0))
ELMO_EFFECT(wait_for_copies(), "cp.async.wait_all;", )

// Loads values that other blocks of the launch wrote before a barrier, from L2.
ELMO_DEVICE float2 load_exchanged(const float* from) {
  float2 value;
  asm volatile("ld.global.cg.v2.f32 {%0, %1}, [%2];" : "=f"(value.x), "=f"(value.y) : "l"(from) : "memory");
  return value;
}

// A barrier of `threads` threads of the block; barrier 0 is that of all threads.
ELMO_EFFECT(sync_threads(int barrier, int threads), "bar.sync %0, %1;", "r"(barrier), "r"(threads))

ELMO_EFFECT(add_release(uint32_t* to), "red.release.gpu.global.add.u32 [%0], 1;", "l"(to))
ELMO_VALUE(asm volatile, uint32_t, load_acquire(const uint32_t* from), "ld.acquire.gpu.global.u32 %0, [%1];", "=r",
           "l"(from) : "memory")
ELMO_VALUE(asm volatile, int64_t, nanoseconds_now(), "mov.u64 %0, %globaltimer;", "=l", )

// Bounds a wait for other blocks. All blocks of a cooperative launch run, so that only a fault makes a wait so long; it
// ends the kernel, and the context, with an error.
class Deadline {
 public:
  // Called while the wait goes on.
  ELMO_DEVICE void check() {
    constexpr int64_t longest = 10'000'000'000;  // ns
    const int64_t now = nanoseconds_now();
    if (begin_ == 0) begin_ = now;
    if (now - begin_ > longest) __trap();
  }

 private:
  int64_t begin_ = 0;
};

// ---- clusters: `rank` is a block's number in the cluster, pointers are to this block's shared memory. Only called
// where `has_clusters` is true, so that older targets drop them. So does 12.0, where code that names shared::cluster
// makes the driver reserve 3.5 GB for the life of the context (docs/gpu.md), and no instruction copies to several
// blocks

#if __CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1200
constexpr bool has_clusters = true;
#else
constexpr bool has_clusters = false;
#endif

ELMO_VALUE(asm volatile, uint32_t, remote_address(const void* local, int rank), "mapa.shared::cluster.u32 %0, %1, %2;",
           "=r", "r"(shared_address(local)), "r"(rank))

// A barrier in shared memory. A phase of it ends with as many arrivals as it was initialized for, and the bytes that
// were expected.
using PhaseBarrier = uint64_t;
ELMO_EFFECT(begin_phases(PhaseBarrier* barrier, int arrivals), "mbarrier.init.shared::cta.b64 [%0], %1;",
            "r"(shared_address(barrier)), "r"(arrivals))
// What `begin_phases` wrote is seen by blocks of the cluster after the thread's next release.
ELMO_EFFECT(publish_barriers(), "fence.mbarrier_init.release.cluster;", )
ELMO_EFFECT(arrive_and_expect(PhaseBarrier* barrier, int bytes),
            "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;", "r"(shared_address(barrier)), "r"(bytes))
// Of block scope: others wait for it only to overwrite what was read, which needs the count and no order of writes. An
// arrival that released to the cluster would wait for all loads and stores of the thread.
ELMO_EFFECT(arrive_remote(uint32_t barrier), "mbarrier.arrive.shared::cluster.b64 _, [%0];", "r"(barrier))
#define ELMO_TRY(name, scope)                                                            \
  ELMO_VALUE(asm volatile, uint32_t, name(const PhaseBarrier* barrier, uint32_t parity), \
             "{\n.reg .pred p;\nmbarrier.try_wait.parity" scope                          \
             ".shared::cta.b64 p, [%1], %2;\n"                                           \
             "selp.u32 %0, 1, 0, p;\n}",                                                 \
             "=r", "r"(shared_address(barrier)), "r"(parity) : "memory")
// Whether the phases with this parity have ended; a try itself waits for some microseconds. `of_cluster`: other blocks'
// stores are read then, for which the thread's processor drops its L1. Bulk copies need no more than block scope.
ELMO_TRY(has_ended, "")
ELMO_TRY(has_ended_in_cluster, ".acquire.cluster")
// Waits for the end of the phases with this parity; the first has parity 0.
template <bool of_cluster = false>
ELMO_DEVICE void wait_for_phase(const PhaseBarrier* barrier, uint32_t parity) {
  Deadline deadline;
  while (!(of_cluster ? has_ended_in_cluster(barrier, parity) : has_ended(barrier, parity))) deadline.check();
}
// Stores 16 bytes in another block's shared memory, which the barrier there counts.
ELMO_EFFECT(store_remote(uint32_t to, const uint4& words, uint32_t barrier),
            "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];", "r"(to),
            "r"(words.x), "r"(words.y), "r"(words.z), "r"(words.w), "r"(barrier))
// Copies bytes from L2 to the same place in the shared memory of the first `blocks` of the cluster. Barriers at the
// same place as `barrier` count them.
ELMO_DEVICE void multicast(void* to, const void* from, int bytes, PhaseBarrier* barrier, int blocks) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], "
      "%4;" ::"r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier)), "h"(uint16_t((1 << blocks) - 1))
      : "memory");
}
// What was written to global memory before is seen by later copies of bytes of the thread, and what the thread wrote by
// others'; what it accessed in the block's shared memory may be overwritten by one.
ELMO_EFFECT(fence_global(), "fence.proxy.async.global;", )
ELMO_EFFECT(fence_shared(), "fence.proxy.async.shared::cta;", )

// ---- cells ----------------------------------------------------------------------------------------------------------

// Both within 2e-7 of the true value: much less than a 16-bit operand's rounding.
ELMO_VALUE(asm, float, exp2_approximate(float x), "ex2.approx.ftz.f32 %0, %1;", "=f", "f"(x))
ELMO_VALUE(asm, float, reciprocal_approximate(float x), "rcp.approx.ftz.f32 %0, %1;", "=f", "f"(x))
ELMO_DEVICE float sigmoid(float x) { return reciprocal_approximate(1.0f + exp2_approximate(-1.44269504f * x)); }
ELMO_DEVICE float tanh_of(float x) {
  return 1.0f - 2.0f * reciprocal_approximate(1.0f + exp2_approximate(2.88539008f * x));
}
// NaN passes.
ELMO_DEVICE float clipped(float x, float limit) { return x > limit ? limit : (x < -limit ? -limit : x); }

}  // namespace elmo_fast::cuda
