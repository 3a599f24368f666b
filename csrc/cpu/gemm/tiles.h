// The eight tile registers of AMX: 0-3 sums, 4-5 left operands, 6-7 right operands, all 64 bytes wide.
#pragma once

#include <cstdint>
#include <cstring>

#include "../vec/avx512.h"

namespace elmo_fast::cpu {
namespace {

#if defined(__AMX_TILE__) || defined(__AMXTILE__)  // the second by clang 14
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
#endif

// Emulates Tiles in memory, for tests on machines without AMX, with the same order of rounding. tdpbf16ps accumulates
// the even and the odd products of a row in two chains of fused multiply-adds from zero, adds the chains, adds the
// result to the sum, and treats denormals as zero throughout.
struct EmulatedTiles {
  static void configure(int rows) {
    state.rows = static_cast<size_t>(rows);
    std::memset(state.tile, 0, sizeof state.tile);
  }
  static void release() {}
  static void fence() {}

  template <int T>
  static void load(const void* from, size_t stride) {
    for (size_t r = 0; r < rows_of(T); ++r)
      std::memcpy(state.tile[T][r], static_cast<const char*>(from) + r * stride, 64);
  }

  template <int T>
  static void stream(const void* from) {
    load<T>(from, 64);
  }

  template <int T>
  static void zero() {
    std::memset(state.tile[T], 0, sizeof state.tile[T]);
  }

  template <int T>
  static void store(void* to, size_t stride) {
    for (size_t r = 0; r < rows_of(T); ++r) std::memcpy(static_cast<char*>(to) + r * stride, state.tile[T][r], 64);
  }

  template <int C, int A, int B>
  static void dot() {
    const unsigned mode = _mm_getcsr();
    _mm_setcsr(0x1f80 | 0x8040);  // input and output denormals are zero
    for (size_t r = 0; r < rows_of(C); ++r) dot_row(state.tile[A][r], state.tile[B], state.tile[C][r]);
    _mm_setcsr(mode);
  }

  template <int C, int A, int B>
  static void dot_bytes() {
    for (size_t r = 0; r < rows_of(C); ++r) {
      int32_t sums[16];
      std::memcpy(sums, state.tile[C][r], sizeof sums);
      for (int k = 0; k < 64; ++k)
        for (int column = 0; column < 16; ++column)
          sums[column] +=
              static_cast<int8_t>(state.tile[A][r][k]) * static_cast<int8_t>(state.tile[B][k / 4][4 * column + k % 4]);
      std::memcpy(state.tile[C][r], sums, sizeof sums);
    }
  }

 private:
  struct State {
    size_t rows;
    alignas(64) unsigned char tile[8][16][64];
  };
  static inline thread_local State state;

  static size_t rows_of(int tile) { return tile < 6 ? state.rows : 16; }

  static void dot_row(const unsigned char* a, const unsigned char (*b)[64], unsigned char* c) {
    __m512 even = _mm512_setzero_ps(), odd = _mm512_setzero_ps();
    for (int pair = 0; pair < 16; ++pair) {
      int both;
      std::memcpy(&both, a + 4 * pair, sizeof both);
      const __m512i left = _mm512_set1_epi32(both), right = _mm512_load_si512(b[pair]);
      even = _mm512_fmadd_ps(low_half(left), low_half(right), even);
      odd = _mm512_fmadd_ps(high_half(left), high_half(right), odd);
    }
    float* const sum = reinterpret_cast<float*>(c);
    _mm512_store_ps(sum, _mm512_add_ps(_mm512_load_ps(sum), _mm512_add_ps(even, odd)));
  }

  static __m512 low_half(__m512i x) { return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16)); }
  static __m512 high_half(__m512i x) {
    return _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
  }
};

}  // namespace
}  // namespace elmo_fast::cpu
