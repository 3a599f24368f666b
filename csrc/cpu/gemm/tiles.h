// The eight tile registers of AMX: 0-3 sums, 4-5 left operands, 6-7 right operands, all 64 bytes wide.
#pragma once

#include <cstddef>

namespace elmo_fast::cpu {
namespace {

// In assembly, since intrinsics accept only literal register numbers. The memory operands of tiles are not declared to
// the compiler; `fence` keeps it from moving other accesses across.
struct Tiles {
  // Sets `rows` rows for sums and left operands. Clears all tiles.
  static void configure(int rows) {
    alignas(64) unsigned char config[64] = {1};
    for (int tile = 0; tile < 8; ++tile) {
      config[16 + 2 * tile] = 64;
      config[48 + tile] = static_cast<unsigned char>(tile < 6 ? rows : 16);
    }
    asm volatile("ldtilecfg %0" : : "m"(config));
  }

  static void release() { asm volatile("tilerelease"); }
  static void fence() { asm volatile("" ::: "memory"); }

  template <int T>
  static void load(const void* from, size_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(T));
  }

  // Loads an operand without displacing the other operand from the L1 cache.
  template <int T>
  static void stream(const void* from) {
    asm volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(size_t{64}), "i"(T));
  }

  template <int T>
  static void zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(T));
  }

  template <int T>
  static void store(void* to, size_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(T));
  }

  // Sums in tile C += left operand in tile A x right operand in tile B.
  template <int C, int A, int B>
  static void dot() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
  }

  // The same for signed bytes, with int32 sums.
  template <int C, int A, int B>
  static void dot_bytes() {
    asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
  }
};

}  // namespace
}  // namespace elmo_fast::cpu
