// The eight tile registers of AMX: 0-3 sums, 4-5 left operands, 6-7 right operands.
#include <cstdint>
#include <cstring>

#include "gemm/amx.h"
#include "make_engine.h"

namespace elmo_fast::cpu {
namespace {

struct Tiles {
  // All tiles 64 bytes wide; sums and left operands of `rows` rows. Clears them.
  static void configure(int rows) {
    alignas(64) unsigned char config[64] = {1};
    for (int tile = 0; tile < 8; ++tile) {
      config[16 + 2 * tile] = 64;
      config[48 + tile] = static_cast<unsigned char>(tile < 6 ? rows : 16);
    }
    before();  // some compilers declare only the first bytes as read
    _tile_loadconfig(config);
    after();
  }

  static void release() { _tile_release(); }

  // Tile intrinsics need not declare the memory they touch: keep other accesses on their side.
  static void before() { asm volatile("" ::: "memory"); }
  static void after() { asm volatile("" ::: "memory"); }

  // The intrinsics take literal register numbers only.
  template <int T>
  static void load(const void* from, size_t stride) {
    if constexpr (T == 0) _tile_loadd(0, from, stride);
    if constexpr (T == 1) _tile_loadd(1, from, stride);
    if constexpr (T == 2) _tile_loadd(2, from, stride);
    if constexpr (T == 3) _tile_loadd(3, from, stride);
    if constexpr (T == 4) _tile_loadd(4, from, stride);
    if constexpr (T == 5) _tile_loadd(5, from, stride);
    if constexpr (T == 6) _tile_loadd(6, from, stride);
    if constexpr (T == 7) _tile_loadd(7, from, stride);
  }

  template <int T>
  static void store(void* to, size_t stride) {
    if constexpr (T == 0) _tile_stored(0, to, stride);
    if constexpr (T == 1) _tile_stored(1, to, stride);
    if constexpr (T == 2) _tile_stored(2, to, stride);
    if constexpr (T == 3) _tile_stored(3, to, stride);
  }

  template <int C, int A, int B>
  static void dot() {
    if constexpr (C == 0) _tile_dpbf16ps(0, 4, 6);
    if constexpr (C == 1) _tile_dpbf16ps(1, 4, 7);
    if constexpr (C == 2) _tile_dpbf16ps(2, 5, 6);
    if constexpr (C == 3) _tile_dpbf16ps(3, 5, 7);
    static_assert(A == 4 + C / 2 && B == 6 + C % 2, "register roles");
  }
};

}  // namespace

const AmxEngine& amx_engine() {
  static const AmxEngine engine = {make_engine<AmxGemm<Tiles, 2>>(), make_engine<AmxGemm<Tiles, 1>>()};
  return engine;
}

}  // namespace elmo_fast::cpu
