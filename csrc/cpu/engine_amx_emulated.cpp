// AMX tiles in ordinary memory, for tests on machines without them: the same sums in the same rounding order.
// tdpbf16ps adds even and odd products of a row in two fused chains from zero, adds the chains, adds that to the sum,
// and treats denormals as zero throughout.
#include <cstdint>
#include <cstring>

#include "gemm/amx.h"
#include "make_engine.h"

namespace elmo_fast::cpu {
namespace {

struct TileState {
  int rows;
  alignas(64) unsigned char tile[8][16][64];
};

thread_local TileState tile_state;

struct Tiles {
  static void configure(int rows) {
    tile_state.rows = rows;
    std::memset(tile_state.tile, 0, sizeof tile_state.tile);
  }
  static void release() {}
  static void before() {}
  static void after() {}

  static int rows_of(int tile) { return tile < 6 ? tile_state.rows : 16; }

  template <int T>
  static void load(const void* from, size_t stride) {
    for (int r = 0; r < rows_of(T); ++r)
      std::memcpy(tile_state.tile[T][r], static_cast<const char*>(from) + static_cast<size_t>(r) * stride, 64);
  }

  template <int T>
  static void store(void* to, size_t stride) {
    for (int r = 0; r < rows_of(T); ++r)
      std::memcpy(static_cast<char*>(to) + static_cast<size_t>(r) * stride, tile_state.tile[T][r], 64);
  }

  template <int C, int A, int B>
  static void dot() {
    const unsigned mode = _mm_getcsr();
    _mm_setcsr(0x1f80 | 0x8040);  // denormals in and out are zero
    for (int r = 0; r < rows_of(C); ++r) dot_row(tile_state.tile[A][r], tile_state.tile[B], tile_state.tile[C][r]);
    _mm_setcsr(mode);
  }

 private:
  static void dot_row(const unsigned char* a, const unsigned char (*b)[64], unsigned char* c) {
    __m512 even = _mm512_setzero_ps(), odd = _mm512_setzero_ps();
    for (int pair = 0; pair < 16; ++pair) {
      uint32_t both;
      std::memcpy(&both, a + 4 * pair, sizeof both);
      const __m512i left = _mm512_set1_epi32(static_cast<int>(both)), right = _mm512_load_si512(b[pair]);
      even = _mm512_fmadd_ps(low_half(left), low_half(right), even);
      odd = _mm512_fmadd_ps(high_half(left), high_half(right), odd);
    }
    const __m512 sum = _mm512_add_ps(_mm512_load_ps(reinterpret_cast<float*>(c)), _mm512_add_ps(even, odd));
    _mm512_store_ps(reinterpret_cast<float*>(c), sum);
  }

  static __m512 low_half(__m512i x) { return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16)); }
  static __m512 high_half(__m512i x) {
    return _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
  }
};

}  // namespace

const AmxEngine& amx_emulated_engine() {
  static const AmxEngine engine = {make_engine<AmxGemm<Tiles, 2>>(), make_engine<AmxGemm<Tiles, 1>>()};
  return engine;
}

}  // namespace elmo_fast::cpu
