// bf16 products on 16 x 16 tiles with fp32 sums, for one part (bf16) or two (value = high + low, three products).
// `Tiles` are the tile registers or their emulation (tiles.h).
//
// Left operand, per 16 rows and 32 k: one tile [16 rows, 32 k] per part. Right operand, per 32 k: per part two tiles,
// one per vector of columns, [16 pairs of k, 16 columns, 2]. k is padded to 32 with zeros on both sides.
// Sums run over k in steps of 32 (low x high, high x high, high x low in each), the same for every row.
#pragma once

#include <type_traits>

#include "../vec.h"
#include "fp32.h"

namespace elmo_fast::cpu {

// Internal linkage, as of Avx512Vec.
namespace {

constexpr int64_t tile_bytes = 1024;
constexpr int64_t tile_rows = 16;
constexpr int64_t tile_k = 32;

// Rows of fp16, whose rounding is an eighth of that of bf16 operands, at half the traffic of fp32.
struct HalfRows {
  using Value = uint16_t;
  static __m512 get(const uint16_t* from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }
  static void put(__m512 x, uint16_t* to) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
  }
};

template <class Tiles, int Parts>
struct AmxGemm {
  using Vec = Avx512Vec;
  using Activations = ApproximateActivations<Vec, Parts == 2>;
  using InputRows = std::conditional_t<Parts == 1, HalfRows, FloatRows<Vec>>;
  static constexpr int panel_width = 2 * Vec::width;
  static constexpr int64_t block_rows = 2 * tile_rows;
  static constexpr int64_t cached_rows = 256;
  static constexpr int64_t unit = 512;
  static constexpr bool interleaves = true;
  static constexpr int64_t bytes_per_k = 2 * Parts * tile_bytes / tile_k;
  static constexpr int64_t bytes_per_prefetch = 128;  // the neighbouring line comes along

  // Tiles are read and written whole, so only the last rows of a buffer may be unused.
  static Blocks blocks(int64_t rows) { return Blocks(rows, block_rows, false); }
  static int64_t buffer_rows(int64_t rows) { return (rows + tile_rows - 1) / tile_rows * tile_rows; }
  static int64_t padded(int64_t k) { return (k + tile_k - 1) / tile_k * tile_k; }
  static int64_t row_bytes(int64_t k) { return padded(k) * Parts * static_cast<int64_t>(sizeof(uint16_t)); }

  // How often `between` runs in the product of one block with a panel of k rows: after the tiles of every 32, which
  // keep their unit busy while the vector units work on something else.
  static int64_t parts(int64_t k) { return padded(k) / tile_k; }

  void begin(int64_t rows) const { Tiles::configure(static_cast<int>(rows < tile_rows ? rows : tile_rows)); }
  void end() const { Tiles::release(); }

  static void pack_right(const PanelSource& source, int64_t k0, int64_t k, char* packed) {
    const auto row = [&](int v, int64_t r) {
      return load_some(source.start[v] + (k0 + r) * source.stride, r < k ? source.columns[v] : 0);
    };
    for (int64_t r = 0; r < padded(k); r += 2)
      for (int v = 0; v < 2; ++v) {
        char* to = packed + r / tile_k * (2 * Parts * tile_bytes) + v * tile_bytes + r % tile_k * 32;
        const Split even(row(v, r)), odd(row(v, r + 1));
        for (int part = 0; part < Parts; ++part, to += 2 * tile_bytes)
          _mm512_storeu_si512(to, _mm512_or_epi32(even.part[part], _mm512_slli_epi32(odd.part[part], 16)));
      }
  }

  // k0 is a multiple of 16, and so is `count` where it does not reach the end of k.
  static void put_left(char* block, int64_t k_total, int /*rows*/, int r, int64_t k0, int64_t count,
                       const float* values) {
    char* row = block + r / tile_rows * (tile_rows * row_bytes(k_total)) + r % tile_rows * 64;
    for (; count > 0; k0 += Vec::width, count -= Vec::width, values += Vec::width) {
      char* to = row + k0 / tile_k * (Parts * tile_bytes) + k0 % tile_k * 2;
      const Split x(count < Vec::width ? load_some(values, count) : Vec::load(values));
      for (int part = 0; part < Parts; ++part, to += tile_bytes)
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(x.part[part]));
    }
  }

  template <class Between>
  void multiply(const char* block, int64_t k_total, int rows, int64_t k0, int64_t k, const char* right, Start start,
                float* c, size_t ldc, int64_t part, int64_t parts, Between& between) const {
    const char* left = block + k0 / tile_k * (Parts * tile_bytes);
    const int64_t bytes = padded(k) * bytes_per_k, part_bytes = bytes / parts;
    const Prefetch next = {right + bytes + part * part_bytes, part_bytes / (padded(k) / tile_k)};
    if (rows > tile_rows) sum<2>(left, tile_rows * row_bytes(k_total), padded(k), right, start, c, ldc, next, between);
    else sum<1>(left, 0, padded(k), right, start, c, ldc, next, between);
  }

 private:
  struct Prefetch {
    const char* from;
    int64_t per_step;  // bytes
  };

  // `count` floats and zeros.
  static __m512 load_some(const float* from, int64_t count) {
    return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1 << count) - 1), from);
  }

  // Values as one bf16, or as two whose sum has 16 bits. Infinities and NaN go to the second of two, which meets one
  // part of the other operand only: two products of unlike signs would make NaN of an infinity.
  struct Split {
    __m512i part[Parts];

    explicit Split(__m512 x) {
      part[0] = to_bf16(x);
      if (Parts == 1) return;
      const __m512i exponent = _mm512_set1_epi32(0x7f80), largest = _mm512_set1_epi32(0x7f7f);
      const __m512i halves = _mm512_srli_epi32(_mm512_castps_si512(x), 16);
      const __mmask16 finite = _mm512_cmpneq_epi32_mask(_mm512_and_si512(halves, exponent), exponent);
      const __mmask16 full = _mm512_cmpeq_epi32_mask(_mm512_and_si512(part[0], exponent), exponent);
      const __m512i sign = _mm512_and_si512(part[0], _mm512_set1_epi32(0x8000));
      const __m512i high = _mm512_mask_or_epi32(part[0], full & finite, sign, largest);
      const __m512 rest = _mm512_sub_ps(x, _mm512_castsi512_ps(_mm512_slli_epi32(high, 16)));
      part[0] = _mm512_maskz_mov_epi32(finite, high);
      part[Parts - 1] = _mm512_mask_mov_epi32(high, finite, to_bf16(rest));
    }
  };

  // Rounds to the nearest bf16, ties to even; a NaN stays one.
  static __m512i to_bf16(__m512 x) {
    const __m512i bits = _mm512_castps_si512(x), half = _mm512_srli_epi32(bits, 16);
    const __m512i odd = _mm512_and_si512(half, _mm512_set1_epi32(1));
    const __m512i up = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    return _mm512_mask_or_epi32(_mm512_srli_epi32(up, 16), nan, half, _mm512_set1_epi32(0x40));
  }

  // One or two tiles of rows, the second `second` bytes after the first.
  template <int Rows, class Between>
  static void sum(const char* left, int64_t second, int64_t k, const char* right, Start start, float* c, size_t ldc,
                  Prefetch next, Between& between) {
    Tiles::fence();
    const float* from = start.rows;
    Tiles::template load<0>(from, start.stride * 4);
    Tiles::template load<1>(from + Vec::width, start.stride * 4);
    from = start.from(tile_rows).rows;
    if (Rows == 2) Tiles::template load<2>(from, start.stride * 4);
    if (Rows == 2) Tiles::template load<3>(from + Vec::width, start.stride * 4);
    for (; k > 0; k -= tile_k) {
      for (int64_t at = 0; at < next.per_step; at += bytes_per_prefetch) __builtin_prefetch(next.from + at, 0, 2);
      next.from += next.per_step;
      step<Rows>(left, second, right);
      between();
      left += Parts * tile_bytes;
      right += 2 * Parts * tile_bytes;
    }
    float* c1 = c + tile_rows * static_cast<int64_t>(ldc);
    Tiles::template store<0>(c, ldc * 4);
    Tiles::template store<1>(c + Vec::width, ldc * 4);
    if (Rows == 2) Tiles::template store<2>(c1, ldc * 4);
    if (Rows == 2) Tiles::template store<3>(c1 + Vec::width, ldc * 4);
    Tiles::fence();
  }

  template <int Rows>
  static void step(const char* left, int64_t second, const char* right) {
    load_right(right);
    if (Parts == 2) {
      load_left<Rows>(left + tile_bytes, second);
      dot<Rows>();
    }
    load_left<Rows>(left, second);
    dot<Rows>();
    if (Parts == 2) {
      load_right(right + 2 * tile_bytes);
      dot<Rows>();
    }
  }

  template <int Rows>
  static void load_left(const char* left, int64_t second) {
    Tiles::template load<4>(left, 64);
    if (Rows == 2) Tiles::template load<5>(left + second, 64);
  }

  static void load_right(const char* right) {
    Tiles::template load<6>(right, 64);
    Tiles::template load<7>(right + tile_bytes, 64);
  }

  template <int Rows>
  static void dot() {
    Tiles::template dot<0>();
    Tiles::template dot<1>();
    if (Rows == 2) Tiles::template dot<2>();
    if (Rows == 2) Tiles::template dot<3>();
  }
};

}  // namespace
}  // namespace elmo_fast::cpu
