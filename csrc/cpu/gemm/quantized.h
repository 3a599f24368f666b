// Symmetric 8-bit quantization. The left operand has a scale per row and unit of k (packing.h), the right operand one
// per column and unit of k. The integer sum of a unit is at most 512 * 127 * 127 < 2^24: it is exact in int32 and after
// its conversion to fp32, whatever the order of additions, instruction set or tile shape.
//
// Units are added in fp32, in order: c += sum * (scale of the row * scale of the column).
#pragma once

#include <cmath>
#include <cstdlib>
#include <type_traits>

#include "../activations.h"
#include "input_rows.h"
#include "packing.h"

namespace elmo_fast::cpu {
namespace {

constexpr int64_t quantized_unit = 512;

// Quantizes x [count] to integers from -127 to 127, and returns their scale. If all |x| are below 2^-100, all become 0.
// If some x are infinite, they become +-127, all others -1, 0 or 1 by their sign, and the scale is infinite; see
// QuantizedPanels::add_infinities. If some x is NaN, the scale is NaN.
inline float quantize(const float* x, int64_t count, int8_t* to) {
  const auto bits_of = [](float value) {
    int32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
  };
  int32_t largest = 0;  // the bits of the largest |x|; those of NaN are the largest
  for (int64_t k = 0; k < count; ++k) {
    const int32_t bits = bits_of(x[k]) & 0x7fffffff;
    largest = bits > largest ? bits : largest;
  }
  float size;
  std::memcpy(&size, &largest, sizeof size);
  constexpr int32_t infinity = 0x7f800000;
  if (size < 0x1p-100f || largest > infinity) {
    for (int64_t k = 0; k < count; ++k) to[k] = 0;
    return largest > infinity ? size : 0.0f;
  }
  if (largest == infinity) {
    for (int64_t k = 0; k < count; ++k)
      to[k] = static_cast<int8_t>(((x[k] > 0) - (x[k] < 0)) * (std::isinf(x[k]) ? 127 : 1));
    return size;
  }
  const float inverse = 127.0f / size;
  for (int64_t k = 0; k < count; ++k)  // adding 1.5 * 2^23 rounds to an integer, in the low bits
    to[k] = static_cast<int8_t>(bits_of(x[k] * inverse + 12582912.0f));
  return size / 127.0f;
}

// The packed right operand of 8-bit products. A unit of a panel has [k / 4 / Quads][2 vectors][Quads][width][4] bytes;
// then -128 times the sum of each column's bytes, int32; then each column's scale.
template <class Vec, int64_t Quads>
struct QuantizedPanels {
  static constexpr int panel_width = 2 * Vec::width;
  static constexpr int64_t bytes_per_k = panel_width, bytes_per_unit = 8 * panel_width;

  static void pack(const PanelSource& source, int64_t k0, int64_t k, int64_t padded, char* packed) {
    std::memset(packed, 0, static_cast<size_t>(padded * bytes_per_k + bytes_per_unit));
    for (int64_t column = 0; column < panel_width; ++column) {
      const int64_t v = column / Vec::width, in_vector = column % Vec::width;
      if (in_vector >= source.columns[v]) continue;
      float values[quantized_unit];
      int8_t bytes[quantized_unit];
      for (int64_t row = 0; row < k; ++row) values[row] = source.start[v][(k0 + row) * source.stride + in_vector];
      const float scale = quantize(values, k, bytes);
      int32_t sum = 0;
      for (int64_t row = 0; row < k; ++row) {
        packed[place(row, v, in_vector)] = bytes[row];
        sum += bytes[row];
      }
      const int32_t offset = -128 * sum;
      std::memcpy(packed + padded * bytes_per_k + 4 * column, &offset, sizeof offset);
      std::memcpy(packed + padded * bytes_per_k + 4 * (panel_width + column), &scale, sizeof scale);
    }
  }

  // Offsets and scales of the columns of vector v; `bytes` is the size of the unit's 8-bit part.
  static typename Vec::I offsets(const char* unit, int64_t bytes, int64_t v) {
    typename Vec::I values;
    std::memcpy(&values, unit + bytes + 4 * v * Vec::width, sizeof values);
    return values;
  }
  static typename Vec::F scales(const char* unit, int64_t bytes, int64_t v) {
    return Vec::load(reinterpret_cast<const float*>(unit + bytes + 4 * panel_width) + v * Vec::width);
  }

  // Whether columns of the unit have infinite scales.
  static bool has_infinity(const char* unit, int64_t bytes) {
    float scales[panel_width];
    std::memcpy(scales, unit + bytes + 4 * panel_width, sizeof scales);
    bool found = false;
    for (const float scale : scales) found |= scale == INFINITY;
    return found;
  }

  // Where the scale of the row or of a column is infinite, sets vector v of a row of c to `from` + the infinite
  // products, so that infinities of both signs, and an infinity times zero, give NaN. A finite value that rounds to
  // zero counts as zero. `left`(k) is byte k of the row.
  template <class Left>
  [[gnu::noinline]] static void add_infinities(float* c, const float* from, float of_row, Left left, const char* unit,
                                               int64_t k, int64_t v) {
    float of_columns[Vec::width];
    Vec::store(of_columns, scales(unit, k * bytes_per_k, v));
    for (int64_t column = 0; column < Vec::width; ++column) {
      const bool is_row = of_row == INFINITY, is_column = of_columns[column] == INFINITY;
      if (!is_row && !is_column) continue;
      c[column] = from[column];
      for (int64_t at = 0; at < k; ++at) {
        const int a = left(at), b = static_cast<int8_t>(unit[place(at, v, column)]);
        if ((is_row && std::abs(a) == 127) || (is_column && std::abs(b) == 127))
          c[column] += INFINITY * static_cast<float>(a * b);
      }
    }
  }

 private:
  // Where a row's byte of a column is in a unit.
  static int64_t place(int64_t row, int64_t v, int64_t in_vector) {
    const int64_t quad = row / 4;
    return ((quad / Quads * 2 + v) * Quads + quad % Quads) * Vec::width * 4 + in_vector * 4 + row % 4;
  }
};

// The activations, and the type of the input rows, of LSTM cells with 8-bit products.
template <class Vec>
struct QuantizedCells {
  using Activations = ExactActivations<Vec>;
  using InputRows = FloatRows<Vec>;
};

#ifdef __AVX512F__
template <>
struct QuantizedCells<Avx512Vec> {
  using Activations = ApproximateActivations<Avx512Vec, false>;
  using InputRows = HalfRows;
};
#endif

}  // namespace
}  // namespace elmo_fast::cpu
