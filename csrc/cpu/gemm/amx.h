// bf16 products on 16 x 16 tiles with fp32 sums, for one part (bf16) or two (value = high + low, three products).
//
// Left operand, per 16 rows and 32 k: one tile [16 rows, 32 k] per part. Right operand, per 32 k: per part two tiles,
// one per vector of columns, [16 pairs of k, 16 columns, 2]. k is padded to 32 with zeros on both sides.
// Sums accumulate k in steps of 32 (in order low x high, high x high, high x low), the same for every row.
#pragma once

#include "fp32.h"
#include "tile_product.h"

namespace elmo_fast::cpu {

// Internal linkage, as for Avx512Vec.
namespace {

constexpr int64_t tile_k = 32;

template <int Parts>
struct AmxGemm {
  using Vec = Avx512Vec;
  using Product = TileProduct<Parts, false>;
  using Activations = ApproximateActivations<Vec, Parts == 2>;
  using InputRows = std::conditional_t<Parts == 1, HalfRows, StreamedFloatRows>;
  static constexpr int panel_width = 2 * Vec::width;
  static constexpr int64_t block_rows = 2 * tile_rows;
  static constexpr int64_t cached_rows = 256;
  static constexpr int64_t unit = 512 / Parts;
  static constexpr bool interleaves = true, takes_units = false;
  static constexpr int64_t bytes_per_k = 2 * Parts * tile_bytes / tile_k, bytes_per_unit = 0;

  // Whole tiles are read and written, so buffers are padded to whole tiles.
  static Blocks blocks(int64_t rows) { return Blocks(rows, block_rows, false); }
  static int64_t buffer_rows(int64_t rows) { return (rows + tile_rows - 1) / tile_rows * tile_rows; }
  static int64_t padded(int64_t k) { return (k + tile_k - 1) / tile_k * tile_k; }
  static int64_t row_bytes(int64_t k) { return padded(k) * Parts * static_cast<int64_t>(sizeof(uint16_t)); }

  // Vector v of row r in sums with `width` floats per row.
  template <class Float>
  static Float* sum_at(Float* sums, int64_t width, int64_t r, int64_t v) {
    return Product::sum_at(sums, width, r, v);
  }

  // Vector k / 16 of row r in a left operand with `k_total` columns.
  static char* left_at(char* left, int64_t k_total, int64_t r, int64_t k) {
    return left + (r >> 4) * (tile_rows * row_bytes(k_total)) + k / tile_k * (Parts * tile_bytes) + (r & 15) * 64 +
           k % tile_k * 2;
  }

  void begin(int64_t rows) const { Tiles::configure(static_cast<int>(rows < tile_rows ? rows : tile_rows)); }
  void end() const {
    Tiles::release();
    _mm_sfence();  // orders the non-temporal stores before later writes of other threads
  }

  static void pack_right(const PanelSource& source, int64_t k0, int64_t k, char* packed) {
    const auto row = [&](int v, int64_t r) {
      return load_some(source.start[v] + (k0 + r) * source.stride, r < k ? source.columns[v] : 0);
    };
    for (int64_t r = 0; r < padded(k); r += 2)
      for (int v = 0; v < 2; ++v) {
        char* to = packed + r / tile_k * (2 * Parts * tile_bytes) + v * tile_bytes + r % tile_k * 32;
        const Split even(row(v, r)), odd(row(v, r + 1));
        for (int part = 0; part < Parts; ++part, to += 2 * tile_bytes)
          _mm512_storeu_si512(to, _mm512_or_epi32(_mm512_cvtepu16_epi32(even.part[part]),
                                                  _mm512_slli_epi32(_mm512_cvtepu16_epi32(odd.part[part]), 16)));
      }
  }

  // k0 is a multiple of 16, and so is `count` unless it reaches the end of k.
  static void put_left(char* block, int64_t k_total, int /*rows*/, int r, int64_t k0, int64_t count,
                       const float* values) {
    for (; count > 0; k0 += Vec::width, count -= Vec::width, values += Vec::width)
      put_vector(left_at(block, k_total, r, k0), load_some(values, smaller(count, Vec::width)), count);
  }

  // Writes the first `count` values of x to a left operand.
  static void put_vector(char* to, __m512 x, int64_t count) {
    const Split split(x);
    for (int part = 0; part < Parts; ++part, to += tile_bytes) {
      if (count >= Vec::width) _mm256_store_si256(reinterpret_cast<__m256i*>(to), split.part[part]);
      else _mm256_mask_storeu_epi16(to, static_cast<__mmask16>((1 << count) - 1), split.part[part]);
    }
  }

  template <class Between>
  void multiply(const char* block, int64_t k_total, int rows, int64_t k0, int64_t k, const RightUnit& right,
                Start start, float* c, size_t ldc, int64_t part, int64_t parts, Between& between) const {
    const typename Product::Operands from = {block + k0 / tile_k * (Parts * tile_bytes), tile_rows * row_bytes(k_total),
                                             right.data};
    Product::multiply(from, {start, c, static_cast<int64_t>(ldc), padded(k) / tile_k}, rows, right.next,
                      padded(k) * bytes_per_k, part, parts, between);
  }

 private:
  // Loads `count` floats, then zeros.
  static __m512 load_some(const float* from, int64_t count) {
    return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1 << count) - 1), from);
  }

  // Values as one bf16, or as the sum of two, with 16 bits of precision. Infinities and NaN are in the second of two,
  // which is multiplied by only one part of the other operand: an infinity times two parts of opposite signs would sum
  // to NaN.
  struct Split {
    __m256i part[Parts];

    explicit Split(__m512 x) {
      if constexpr (Parts == 2) {
        const __m512 largest = _mm512_castsi512_ps(_mm512_set1_epi32(0x7f7f0000)), zero = Vec::set1(0.0f);
        const __mmask16 finite = _mm512_cmp_ps_mask(x - x, zero, _CMP_EQ_OQ);
        const __m512 in_range = Vec::at_most(largest, Vec::at_least(zero - largest, x));
        part[0] = _mm256_maskz_mov_epi16(finite, to_bf16(in_range));
        x -= _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(part[0]), 16));
      }
      part[Parts - 1] = to_bf16(x);
    }
  };

  // Rounds to the nearest bf16, ties to even. A NaN stays NaN. Denormals become zero, as in the dots.
  static __m256i to_bf16(__m512 x) { return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x)); }
};

}  // namespace
}  // namespace elmo_fast::cpu
