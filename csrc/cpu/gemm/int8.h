// 8-bit products on register tiles of vectors; quantized.h defines the quantization.
//
// Left operand: row by row, each [k] in the layout that Dots reads, then a scale per unit. Right operand: panels of
// units, [k / 4][2 vectors][width][4] bytes. k is padded with zeros in both.
#pragma once

#include "fp32.h"
#include "quantized.h"

namespace elmo_fast::cpu {
namespace {

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__) || defined(__ARM_FEATURE_DOTPROD)
// Four products at a time. Where those are of unsigned bytes on the left and signed bytes on the right, 128 is added to
// the bytes on the left, and the sums start at -128 times the sum of their column.
template <class Vec>
struct Dots {
  using I = typename Vec::I;
  // 6 x 2 sums: more take up to twice the time on AVX-512; 8 x 2 of NEON's 32 registers
  static constexpr int rows = Vec::width == 4 ? 8 : 6;
  static constexpr int64_t bytes = 1;  // per value on the left

  static void put(const int8_t* from, int64_t count, char* to) {
    for (int64_t k = 0; k < count; ++k) to[k] = static_cast<char>(from[k] + Vec::dot_offset);
  }
  static int get(const char* row, int64_t k) { return static_cast<int8_t>(row[k] - Vec::dot_offset); }
  static I begin(I offsets) { return Vec::dot_offset ? offsets : I{}; }

  // sum [R, 2 vectors] += four columns of `left`, whose rows are `step` bytes apart, x four rows of `right`.
  template <int R>
  static inline __attribute__((always_inline)) void add(const char* left, int64_t step, const char* right,
                                                        I (&sum)[R][2]) {
    const I b0 = Vec::load_bytes(right), b1 = Vec::load_bytes(right + sizeof b0);
    ELMO_FAST_UNROLL
    for (int r = 0; r < R; ++r) {
      const I a = Vec::repeat(left + r * step);
      sum[r][0] = Vec::dot(sum[r][0], a, b0);
      sum[r][1] = Vec::dot(sum[r][1], a, b1);
    }
  }
};
#else
// Pairs of 16-bit products, which cannot overflow. Bytes on the right are widened to 16 bits, the even and the odd ones
// apart; on the left, four values are stored as 16-bit integers in the order 0, 2, 1, 3. At least as fast as `maddubs`
// with moved signs, and the same on every processor.
template <class Vec>
struct Dots {
  using I = typename Vec::I;
  using S = typename Vec::S;
  static constexpr int rows = Vec::width == 16 ? 8 : 6;
  static constexpr int64_t bytes = 2;

  static void put(const int8_t* from, int64_t count, char* to) {
    for (int64_t k = 0; k < count; k += 4) {
      const int16_t quad[] = {from[k], from[k + 2], from[k + 1], from[k + 3]};
      std::memcpy(to + 2 * k, quad, sizeof quad);
    }
  }
  static int get(const char* row, int64_t k) {
    int16_t quad[4];
    std::memcpy(quad, row + k / 4 * 8, sizeof quad);
    return quad[k % 4 == 1 ? 2 : k % 4 == 2 ? 1 : k % 4];
  }
  static I begin(I) { return I{}; }

  template <int R>
  static inline __attribute__((always_inline)) void add(const char* left, int64_t step, const char* right,
                                                        I (&sum)[R][2]) {
    ELMO_FAST_UNROLL
    for (int v = 0; v < 2; ++v) {
      const S both = reinterpret_cast<S>(Vec::load_bytes(right + v * int64_t(sizeof(I))));
      const S odd = both >> 8, even = (both << 8) >> 8;
      ELMO_FAST_UNROLL
      for (int r = 0; r < R; ++r)
        sum[r][v] += Vec::add_pairs(even, reinterpret_cast<S>(Vec::repeat(left + r * step))) +
                     Vec::add_pairs(odd, reinterpret_cast<S>(Vec::repeat(left + r * step + 4)));
      // With 16 registers, load the left operand again for the second vector: keeping it would spill sums.
      if (Vec::width < 16) asm volatile("" : : : "memory");
    }
  }
};
#endif

// c [R, 2 vectors, row stride ldc] = start + a unit of `left` x `right`. Prefetches `Lines` cache lines per four k,
// from `next` on.
template <class Vec, int Lines>
struct QuantizedTile {
  using Function = void(const char*, int64_t, const char*, const char*, int64_t, Start, float*, size_t, const char*);

  // `scales` points to the scale of the first row; those of the next rows follow `step` bytes apart.
  template <int R>
  static void run(const char* left, int64_t step, const char* scales, const char* right, int64_t k, Start start,
                  float* c, size_t ldc, const char* next) {
    using Panels = QuantizedPanels<Vec, 1>;
    const int64_t bytes = k * Panels::bytes_per_k;
    typename Vec::I sum[R][2];
    ELMO_FAST_UNROLL
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < 2; ++v) sum[r][v] = Dots<Vec>::begin(Panels::offsets(right, bytes, v));
    for (const char* at = right; at < right + bytes; at += 4 * Panels::bytes_per_k, left += 4 * Dots<Vec>::bytes) {
      ELMO_FAST_UNROLL
      for (int line = 0; line < Lines; ++line, next += 64) __builtin_prefetch(next, 0, 2);
      Dots<Vec>::add(left, step, at, sum);
    }
    const typename Vec::F of_columns[] = {Panels::scales(right, bytes, 0), Panels::scales(right, bytes, 1)};
    ELMO_FAST_UNROLL
    for (int r = 0; r < R; ++r) {
      float of_row;
      std::memcpy(&of_row, scales + r * step, sizeof of_row);
      const float* const from = start.rows + r * start.stride;
      float* const to = c + r * ldc;
      for (int v = 0; v < 2; ++v)
        Vec::store(to + v * Vec::width, Vec::fma(Vec::convert(sum[r][v]), of_columns[v] * Vec::set1(of_row),
                                                 Vec::load(from + v * Vec::width)));
    }
  }
};

template <class Vec_>
struct Int8Gemm : QuantizedCells<Vec_>, QuantizedPanels<Vec_, 1> {
  using Vec = Vec_;
  using Panels = QuantizedPanels<Vec, 1>;
  using Panels::panel_width, Panels::bytes_per_k, Panels::bytes_per_unit;
  static constexpr int block_rows = Dots<Vec>::rows;
  static constexpr int64_t cached_rows = 256;
  static constexpr int64_t unit = quantized_unit;
  static constexpr bool interleaves = true, takes_units = true;

  static Blocks blocks(int64_t rows) { return Blocks(rows, block_rows, true); }
  static int64_t buffer_rows(int64_t rows) { return rows; }
  static int64_t padded(int64_t k) { return (k + 7) / 8 * 8; }
  static int64_t row_bytes(int64_t k) {
    return static_cast<int64_t>(aligned64(padded(k) * Dots<Vec>::bytes + 4 * divided_up(k, unit)));
  }

  template <class Float>
  static Float* sum_at(Float* sums, int64_t width, int64_t r, int64_t v) {
    return sums + r * width + v * Vec::width;
  }

  Int8Gemm() {
    fill_tiles<QuantizedTile<Vec, 0>, block_rows>(table_[0]);
    fill_tiles<QuantizedTile<Vec, 1>, block_rows>(table_[1]);
    if constexpr (all_lines == 2) fill_tiles<QuantizedTile<Vec, 2>, block_rows>(table_[2]);
  }

  void begin(int64_t /*rows*/) const {}
  void end() const {}

  static void pack_right(const PanelSource& source, int64_t k0, int64_t k, char* packed) {
    Panels::pack(source, k0, k, padded(k), packed);
  }

  // Columns [k0, k0 + count) begin and end at boundaries of units, or end at the last column.
  static void put_left(char* block, int64_t k_total, int /*rows*/, int r, int64_t k0, int64_t count,
                       const float* values) {
    char* const row = block + r * row_bytes(k_total);
    for (; count > 0; k0 += unit, count -= unit, values += unit) {
      int8_t bytes[unit] = {};
      const int64_t k = smaller(unit, count);
      const float scale = quantize(values, k, bytes);
      Dots<Vec>::put(bytes, padded(k), row + k0 * Dots<Vec>::bytes);
      std::memcpy(scale_at(row, k_total, k0), &scale, sizeof scale);
    }
  }

  template <class Between>
  void multiply(const char* block, int64_t k_total, int rows, int64_t k0, int64_t k, const RightUnit& right,
                Start start, float* c, size_t ldc, int64_t part, int64_t parts, Between& /*between*/) const {
    const int sharing = parts < 2 ? 1 : all_lines, lines = part < sharing ? all_lines / sharing : 0;
    static constexpr float zeros[panel_width] = {};
    if (!start.rows) start = {zeros, 0};
    const char* const next = right.next + part * (padded(k) / 4) * (64 * lines);
    const char *const left = block + k0 * Dots<Vec>::bytes, *const scales = scale_at(block, k_total, k0);
    const int64_t step = row_bytes(k_total);
    const auto sum = [&](Start from) {
      table_[lines][rows](left, step, scales, right.data, padded(k), from, c, ldc, next);
    };
    bool has_infinity = Panels::has_infinity(right.data, padded(k) * bytes_per_k);
    for (int r = 0; r < rows; ++r) has_infinity |= scale_of(scales + r * step) == INFINITY;
    if (!has_infinity) return sum(start);
    float from[block_rows][panel_width];  // c may be where the sums start
    for (int r = 0; r < rows; ++r) std::memcpy(from[r], start.rows + r * start.stride, sizeof from[r]);
    sum({from[0], panel_width});
    for (int r = 0; r < rows; ++r)
      for (int v = 0; v < 2; ++v)
        Panels::add_infinities(
            sum_at(c, static_cast<int64_t>(ldc), r, v), sum_at(from[0], panel_width, r, v), scale_of(scales + r * step),
            [&](int64_t at) { return Dots<Vec>::get(left + r * step, at); }, right.data, padded(k), v);
  }

 private:
  static constexpr int all_lines = Vec::width == 16 ? 2 : 1;  // of four k and 2 x 16 columns, which two blocks share

  template <class Char>
  static Char* scale_at(Char* row, int64_t k_total, int64_t k0) {
    return row + padded(k_total) * Dots<Vec>::bytes + k0 / unit * 4;
  }

  static float scale_of(const char* at) {
    float scale;
    std::memcpy(&scale, at, sizeof scale);
    return scale;
  }

  typename QuantizedTile<Vec, 0>::Function* table_[3][block_rows + 1];  // by the Lines of QuantizedTile
};

}  // namespace
}  // namespace elmo_fast::cpu
