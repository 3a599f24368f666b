// 8-bit products on tiles; quantized.h defines the quantization.
//
// Left operand, per 16 rows: tiles [16 rows, 64 k], then the scales of the rows per unit of k. Right operand, per 64 k:
// two tiles, one per vector of columns, [16 quads of k, 16 columns, 4]. k is padded to 64 with zeros in both. The sums
// of a unit are stored from tiles to a buffer and converted to fp32 there.
#pragma once

#include "quantized.h"
#include "tile_product.h"

namespace elmo_fast::cpu {
namespace {

struct AmxInt8Gemm : QuantizedCells<Avx512Vec>, QuantizedPanels<Avx512Vec, 16> {
  using Vec = Avx512Vec;
  using Product = TileProduct<1, true>;
  using Panels = QuantizedPanels<Vec, 16>;
  using Panels::panel_width, Panels::bytes_per_k, Panels::bytes_per_unit;
  static constexpr int64_t block_rows = 2 * tile_rows;
  static constexpr int64_t cached_rows = 256;
  static constexpr int64_t unit = quantized_unit;
  static constexpr bool interleaves = true, takes_units = true;

  // As in AmxGemm.
  static Blocks blocks(int64_t rows) { return Blocks(rows, block_rows, false); }
  static int64_t buffer_rows(int64_t rows) { return (rows + tile_rows - 1) / tile_rows * tile_rows; }
  static int64_t padded(int64_t k) { return (k + tile_k - 1) / tile_k * tile_k; }
  static int64_t row_bytes(int64_t k) { return padded(k) + 4 * divided_up(k, unit); }

  template <class Float>
  static Float* sum_at(Float* sums, int64_t width, int64_t r, int64_t v) {
    return Product::sum_at(sums, width, r, v);
  }

  void begin(int64_t rows) const { Tiles::configure(static_cast<int>(rows < tile_rows ? rows : tile_rows)); }
  void end() const {
    Tiles::release();
    _mm_sfence();  // orders the non-temporal stores before later writes of other threads
  }

  static void pack_right(const PanelSource& source, int64_t k0, int64_t k, char* packed) {
    Panels::pack(source, k0, k, padded(k), packed);
  }

  // Columns [k0, k0 + count) begin and end at boundaries of units, or end at the last column.
  static void put_left(char* block, int64_t k_total, int /*rows*/, int r, int64_t k0, int64_t count,
                       const float* values) {
    char* const tiles = block + (r >> 4) * (tile_rows * row_bytes(k_total));
    for (; count > 0; k0 += unit, count -= unit, values += unit) {
      int8_t bytes[unit] = {};
      const int64_t k = smaller(unit, count);
      const float scale = quantize(values, k, bytes);
      for (int64_t at = 0; at < k; at += tile_k)
        std::memcpy(tiles + (k0 + at) / tile_k * tile_bytes + (r & 15) * tile_k, bytes + at, size_t{tile_k});
      std::memcpy(tiles + scales_at(k_total, k0) + 4 * (r & 15), &scale, sizeof scale);
    }
  }

  template <class Between>
  void multiply(const char* block, int64_t k_total, int rows, int64_t k0, int64_t k, const RightUnit& right,
                Start start, float* c, size_t ldc, int64_t part, int64_t parts, Between& between) const {
    alignas(64) float sums[block_rows * panel_width];
    static constexpr float zeros[Vec::width] = {};
    const int64_t row_tile = tile_rows * row_bytes(k_total), bytes = padded(k) * bytes_per_k;
    Product::multiply({block + k0 / tile_k * tile_bytes, row_tile, right.data},
                      {{}, sums, panel_width, padded(k) / tile_k}, rows, right.next, bytes + bytes_per_unit, part,
                      parts, between);
    const bool has_infinity = Panels::has_infinity(right.data, bytes);
    const __m512 of_columns[] = {Panels::scales(right.data, bytes, 0), Panels::scales(right.data, bytes, 1)};
    for (int r = 0; r < rows; ++r) {
      float of_row;
      std::memcpy(&of_row, block + (r >> 4) * row_tile + scales_at(k_total, k0) + 4 * (r & 15), sizeof of_row);
      for (int64_t v = 0; v < 2; ++v) {
        const __m512 sum = Vec::convert(Vec::load_bytes(reinterpret_cast<char*>(sum_at(sums, panel_width, r, v))));
        const __m512 from = Vec::load(start.rows ? start_at(start, r, v) : zeros);
        float* const to = sum_at(c, static_cast<int64_t>(ldc), r, v);
        Vec::store(to, Vec::fma(sum, of_columns[v] * Vec::set1(of_row), from));
        if (has_infinity || of_row == INFINITY) {
          const char* const left = block + k0 / tile_k * tile_bytes + (r >> 4) * row_tile + (r & 15) * tile_k;
          float from_v[Vec::width];
          Vec::store(from_v, from);
          Panels::add_infinities(
              to, from_v, of_row,
              [&](int64_t at) { return static_cast<int8_t>(left[at / tile_k * tile_bytes + at % tile_k]); }, right.data,
              padded(k), v);
        }
      }
    }
  }

 private:
  static constexpr int64_t tile_k = 64;

  static int64_t scales_at(int64_t k_total, int64_t k0) { return tile_rows * padded(k_total) + k0 / unit * 64; }

  static const float* start_at(Start start, int64_t r, int64_t v) {
    return start.stride ? sum_at(start.rows, static_cast<int64_t>(start.stride), r, v) : start.rows + v * Vec::width;
  }
};

}  // namespace
}  // namespace elmo_fast::cpu
