// The machine of csrc/cuda/phase_types.h on the host: one thread runs all 256 of a block, phase by phase, and emulates the
// tensor cores from the fragments' layout. Whatever blocks share goes through real memory and std::atomic, so that
// ThreadSanitizer sees what a barrier does not order.
#pragma once

#include <atomic>
#include <chrono>
#include <random>
#include <thread>
#include <vector>

#include "../../csrc/cuda/persistent_body.h"
#include "../../csrc/cuda/step_body.h"

namespace simulator {

using namespace elmo_fast::cuda;

// All blocks of a cluster: their shared memory, and a barrier whose halves are `arrive` and `wait`.
struct Cluster {
  std::vector<char*> shared;
  std::atomic<uint32_t> arrived{0};
};

class HostBlock {
 public:
  HostBlock(size_t shared_bytes, Cluster* cluster, int rank, int tiles, unsigned seed)
      : shared(nullptr), memory_(shared_bytes + 15), cluster_(cluster), tiles_(tiles), rng_(seed) {
    shared = memory_.data() + (16 - reinterpret_cast<uintptr_t>(memory_.data()) % 16) % 16;
    if (cluster) cluster->shared[size_t(rank)] = shared;
    own_ = rank;
  }

  char* shared;

  template <class T>
  struct PerThread {
    PerThread() : values(threads) {}
    T& at(int warp, int lane) { return values[size_t(warp * 32 + lane)]; }
    std::vector<T> values;
  };
  template <class T>
  struct PerLane {
    PerLane() : values(32) {}
    T& at(int lane) { return values[size_t(lane)]; }
    std::vector<T> values;
  };

  template <class F>
  void each_thread(F&& f) const {
    for (int at = 0; at < threads; ++at) f(at / 32, at % 32);
  }
  template <class F>
  void each_warp(F&& f) const {
    for (int warp = 0; warp < warps; ++warp) f(warp);
  }
  template <class F>
  void each_lane(F&& f) const {
    for (int lane = 0; lane < 32; ++lane) f(lane);
  }
  template <class F>
  void first_thread(F&& f) const { f(); }

  void sync() { jitter(); }

  void converge() const {}

  // d[row, column] += sum over k of a[row, k] b[k, column], in fp32.
  template <class O, class C, class A, class B>
  void multiply(C&& c_of, A&& a_of, B&& b_of) const {
    float a[16][16], b[16][8];
    for (int lane = 0; lane < 32; ++lane) {
      const TileB right = b_of(lane);
      for (int r = 0; r < 4; ++r)
        for (int e = 0; e < 2; ++e) a[lane / 4 + r % 2 * 8][lane % 4 * 2 + r / 2 * 8 + e] = half<O>(a_of(lane).r[r], e);
      for (int r = 0; r < 2; ++r)
        for (int e = 0; e < 2; ++e) b[lane % 4 * 2 + r * 8 + e][lane / 4] = half<O>(right.r[r], e);
    }
    for (int lane = 0; lane < 32; ++lane)
      for (int r = 0; r < 4; ++r) {
        const int row = lane / 4 + r / 2 * 8, column = lane % 4 * 2 + r % 2;
        float sum = 0.0f;
        for (int k = 0; k < 16; ++k) sum += a[row][k] * b[k][column];
        c_of(lane).r[r] += sum;
      }
  }

  Words4 load_weights(const char* from) const { return *reinterpret_cast<const Words4*>(from); }
  Words4 load_exchanged(const Words4* from) const { return *from; }
  float load_exchanged(const float* from) const { return *from; }
  Words4 load_remote(int rank, const Words4* from) const {
    const char* place = reinterpret_cast<const char*>(from);
    return *reinterpret_cast<const Words4*>(cluster_->shared[size_t(rank)] + (place - shared));
  }
  void copy_weights(char* to, const char* from, size_t bytes) const { std::memcpy(to, from, bytes); }

  // Launches follow each other whole here: the simulator joins one before the next.
  void wait_for_launch_before() { jitter(); }
  void let_next_launch_start() const {}

  void cluster_arrive() {
    jitter();
    cluster_target_ += uint32_t(cluster_->shared.size());
    cluster_->arrived.fetch_add(1, std::memory_order_release);
  }
  void cluster_wait() {
    while (cluster_->arrived.load(std::memory_order_acquire) < cluster_target_) std::this_thread::yield();
  }

  void add_release(uint32_t* to, uint32_t value) { atom(to).fetch_add(value, std::memory_order_release); }
  uint32_t add_acquire_release(uint32_t* to, uint32_t value) {
    return atom(to).fetch_add(value, std::memory_order_acq_rel);
  }
  uint32_t load_acquire(const uint32_t* from) const { return atom(from).load(std::memory_order_acquire); }
  uint32_t load_relaxed(const uint32_t* from) const { return atom(from).load(std::memory_order_relaxed); }
  void store_relaxed(uint32_t* to, uint32_t value) const { atom(to).store(value, std::memory_order_relaxed); }
  int64_t nanoseconds() const { return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1); }
  void pause() const { std::this_thread::yield(); }
  int lane_tiles() const { return tiles_; }

 private:
  static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t), "an atomic word is a word");
  static std::atomic<uint32_t>& atom(const uint32_t* word) {
    return *reinterpret_cast<std::atomic<uint32_t>*>(const_cast<uint32_t*>(word));
  }
  template <class O>
  static float half(uint32_t word, int e) { return O::to(uint16_t(e ? word >> 16 : word & 0xffffu)); }

  // Lets other blocks run first now and then.
  void jitter() {
    const unsigned draw = rng_() % 8;
    if (draw == 0) std::this_thread::sleep_for(std::chrono::microseconds(rng_() % 200));
    if (draw < 4) std::this_thread::yield();
  }

  std::vector<char> memory_;
  Cluster* cluster_;
  int tiles_, own_;
  uint32_t cluster_target_ = 0;
  std::minstd_rand rng_;
};

}  // namespace simulator
