// One thread's view of its block on the device: the machine that the phases run on. Instructions of sm_90 fall away on
// older targets, whose launches have no clusters and wait for the launch before as usual.
#pragma once

#include "operand.h"
#include "phase_types.h"

namespace elmo_fast {
namespace cuda {

#ifdef __CUDA_ARCH__
#define ELMO_DEVICE(...) __VA_ARGS__
#else
#define ELMO_DEVICE(...)
#endif
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define ELMO_SM90(...) __VA_ARGS__
#else
#define ELMO_SM90(...)
#endif

struct DeviceBlock {
  char* shared;

  template <class T>
  struct PerThread {
    T value;
    ELMO_HD T& at(int, int) { return value; }
  };
  template <class T>
  struct PerLane {
    T value;
    ELMO_HD T& at(int) { return value; }
  };

  static ELMO_HD int thread() {
    int index = 0;
    ELMO_DEVICE(index = int(threadIdx.x);)
    return index;
  }

  template <class F>
  ELMO_HD void each_thread(F&& f) const { f(thread() / 32, thread() % 32); }
  template <class F>
  ELMO_HD void each_warp(F&& f) const { f(thread() / 32); }
  template <class F>
  ELMO_HD void each_lane(F&& f) const { f(thread() % 32); }
  template <class F>
  ELMO_HD void first_thread(F&& f) const { if (thread() == 0) f(); }

  ELMO_HD void sync() const { ELMO_DEVICE(__syncthreads();) }

  // `multiply` needs the warp's threads side by side.
  ELMO_HD void converge() const { ELMO_DEVICE(__syncwarp();) }

  // c += a b on tensor cores, one m16n8k16.
  template <class O, class C, class A, class B>
  ELMO_HD void multiply(C&& c_of, A&& a_of, B&& b_of) const {
    TileC& c = c_of(thread() % 32);
    const TileA& a = a_of(thread() % 32);
    const TileB b = b_of(thread() % 32);
    ELMO_DEVICE(mma(c, a, b, O());)
    (void)c, (void)a, (void)b;
  }

  ELMO_HD Words4 load_weights(const char* from) const { return *reinterpret_cast<const Words4*>(from); }

  // What other blocks of the launch wrote before a barrier: from L2, past this processor's L1.
  ELMO_HD Words4 load_exchanged(const Words4* from) const {
    Words4 words = {};
    ELMO_DEVICE(asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
                             : "=r"(words.word[0]), "=r"(words.word[1]), "=r"(words.word[2]), "=r"(words.word[3])
                             : "l"(from) : "memory");)
    return words;
  }
  ELMO_HD float load_exchanged(const float* from) const {
    float value = 0.0f;
    ELMO_DEVICE(asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(value) : "l"(from) : "memory");)
    return value;
  }

  // The same place in the shared memory of the cluster's block `rank`.
  ELMO_HD Words4 load_remote(int rank, const Words4* from) const {
    Words4 words = {};
    (void)rank;
    ELMO_SM90(uint32_t address; asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                                             : "=r"(address)
                                             : "r"(uint32_t(__cvta_generic_to_shared(from))), "r"(rank));
              asm volatile("ld.shared::cluster.v4.u32 {%0, %1, %2, %3}, [%4];"
                           : "=r"(words.word[0]), "=r"(words.word[1]), "=r"(words.word[2]), "=r"(words.word[3])
                           : "r"(address) : "memory");)
    (void)from;
    return words;
  }

  ELMO_HD void copy_weights(char* to, const char* from, size_t bytes) const {
    const Words4* source = reinterpret_cast<const Words4*>(from);
    Words4* target = reinterpret_cast<Words4*>(to);
    ELMO_UNROLL8
    for (int at = thread(); at < int(bytes / sizeof(Words4)); at += threads) target[at] = source[at];
  }

  ELMO_HD void wait_for_launch_before() const { ELMO_SM90(asm volatile("griddepcontrol.wait;" ::: "memory");) }
  ELMO_HD void let_next_launch_start() const {
    ELMO_SM90(asm volatile("griddepcontrol.launch_dependents;" ::: "memory");)
  }
  ELMO_HD void cluster_arrive() const {
    ELMO_SM90(asm volatile("barrier.cluster.arrive.release;" ::: "memory");)
  }
  ELMO_HD void cluster_wait() const {
    ELMO_SM90(asm volatile("barrier.cluster.wait.acquire;" ::: "memory");)
  }

  ELMO_HD void add_release(uint32_t* to, uint32_t value) const {
    ELMO_DEVICE(asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");)
    (void)to, (void)value;
  }
  ELMO_HD uint32_t add_acquire_release(uint32_t* to, uint32_t value) const {
    uint32_t before = 0;
    ELMO_DEVICE(asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
                             : "=r"(before) : "l"(to), "r"(value) : "memory");)
    (void)to, (void)value;
    return before;
  }
  ELMO_HD uint32_t load_acquire(const uint32_t* from) const {
    uint32_t value = 0;
    ELMO_DEVICE(asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");)
    (void)from;
    return value;
  }
  ELMO_HD uint32_t load_relaxed(const uint32_t* from) const {
    uint32_t value = 0;
    ELMO_DEVICE(asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");)
    (void)from;
    return value;
  }
  ELMO_HD void store_relaxed(uint32_t* to, uint32_t value) const {
    ELMO_DEVICE(asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");)
    (void)to, (void)value;
  }
  ELMO_HD int64_t nanoseconds() const {
    int64_t now = 0;
    ELMO_DEVICE(asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));)
    return now;
  }
  ELMO_HD void pause() const {}

  ELMO_HD int lane_tiles() const {
    int count = 1;
    ELMO_DEVICE(count = int(gridDim.y);)
    return count;
  }

 private:
#ifdef __CUDACC__
  static __device__ __forceinline__ void mma(TileC& c, const TileA& a, const TileB& b, Fp16) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(c.r[0]), "+f"(c.r[1]), "+f"(c.r[2]), "+f"(c.r[3])
                 : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "r"(b.r[0]), "r"(b.r[1]));
  }
  static __device__ __forceinline__ void mma(TileC& c, const TileA& a, const TileB& b, Bf16) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(c.r[0]), "+f"(c.r[1]), "+f"(c.r[2]), "+f"(c.r[3])
                 : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "r"(b.r[0]), "r"(b.r[1]));
  }
#endif
};

}  // namespace cuda
}  // namespace elmo_fast
