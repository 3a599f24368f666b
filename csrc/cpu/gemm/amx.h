// bf16 products on 16 x 16 tiles with fp32 sums, for one part (bf16) or two (value = high + low, three products).
// `Tiles` are the tile registers or their emulation (tiles.h).
//
// Left operand, per 16 rows and 32 k: one tile [16 rows, 32 k] per part. Right operand, per 32 k: per part two tiles,
// one per vector of columns, [16 pairs of k, 16 columns, 2]. k is padded to 32 with zeros on both sides.
// Sums, per 16 rows: one tile [16 rows, 16 columns] per vector of columns. They run over k in steps of 32 (low x high,
// high x high, high x low in each), the same for every row.
//
// A dot takes 16 cycles, a load from the first-level cache 8: the tile unit is busy only where nothing waits for the
// second level. One operand stays in the first level and the other is loaded past it: a unit of a panel, 32 KiB, stays
// while all blocks of rows pass, a single block of rows while all panels do. Between any two dots stand lines of the
// next unit to prefetch and other work.
#pragma once

#include <type_traits>
#include <utility>

#include "../vec/avx512.h"
#include "fp32.h"

namespace elmo_fast::cpu {

// Internal linkage, as of Avx512Vec.
namespace {

constexpr int64_t tile_bytes = 1024;
constexpr int64_t tile_rows = 16;
constexpr int64_t tile_k = 32;

// Rows of x W + B in fp16, whose rounding is an eighth of that of bf16 operands, at half the traffic of fp32. `put`
// writes two vectors from a cache line on, past the caches: they are read after all of a chunk.
struct HalfRows {
  using Value = uint16_t;
  static __m512 get(const uint16_t* from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }
  static void put(__m512 x, __m512 y, uint16_t* to) {
    const __m256i low = _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT);
    const __m256i high = _mm512_cvtps_ph(y, _MM_FROUND_TO_NEAREST_INT);
    const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), both);
  }
};

// The same in fp32.
struct StreamedFloatRows {
  using Value = float;
  static __m512 get(const float* from) { return _mm512_load_ps(from); }
  static void put(__m512 x, __m512 y, float* to) {
    _mm512_stream_ps(to, x);
    _mm512_stream_ps(to + 16, y);
  }
};

template <class Tiles, int Parts>
struct AmxGemm {
  using Vec = Avx512Vec;
  using Activations = ApproximateActivations<Vec, Parts == 2>;
  using InputRows = std::conditional_t<Parts == 1, HalfRows, StreamedFloatRows>;
  static constexpr int panel_width = 2 * Vec::width;
  static constexpr int64_t block_rows = 2 * tile_rows;
  static constexpr int64_t cached_rows = 256;
  static constexpr int64_t unit = 512 / Parts;
  static constexpr bool interleaves = true;
  static constexpr int64_t bytes_per_k = 2 * Parts * tile_bytes / tile_k;

  // Tiles are read and written whole, so only the last rows of a buffer may be unused.
  static Blocks blocks(int64_t rows) { return Blocks(rows, block_rows, false); }
  static int64_t buffer_rows(int64_t rows) { return (rows + tile_rows - 1) / tile_rows * tile_rows; }
  static int64_t padded(int64_t k) { return (k + tile_k - 1) / tile_k * tile_k; }
  static int64_t row_bytes(int64_t k) { return padded(k) * Parts * static_cast<int64_t>(sizeof(uint16_t)); }

  // Vector v of row r in sums of `width` floats a row.
  template <class Float>
  static Float* sum_at(Float* sums, int64_t width, int64_t r, int64_t v) {
    return sums + (r >> 4) * (tile_rows * width) + v * (tile_rows * Vec::width) + (r & 15) * Vec::width;
  }

  // Vector k / 16 of row r in a left operand with `k_total` columns.
  static char* left_at(char* left, int64_t k_total, int64_t r, int64_t k) {
    return left + (r >> 4) * (tile_rows * row_bytes(k_total)) + k / tile_k * (Parts * tile_bytes) + (r & 15) * 64 +
           k % tile_k * 2;
  }

  void begin(int64_t rows) const { Tiles::configure(static_cast<int>(rows < tile_rows ? rows : tile_rows)); }
  void end() const {
    Tiles::release();
    _mm_sfence();  // other threads may write next where this one wrote past the caches
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

  // k0 is a multiple of 16, and so is `count` where it does not reach the end of k.
  static void put_left(char* block, int64_t k_total, int /*rows*/, int r, int64_t k0, int64_t count,
                       const float* values) {
    for (; count > 0; k0 += Vec::width, count -= Vec::width, values += Vec::width)
      put_vector(left_at(block, k_total, r, k0), load_some(values, smaller(count, Vec::width)), count);
  }

  // The first `count` of x become values of a left operand.
  static void put_vector(char* to, __m512 x, int64_t count) {
    const Split split(x);
    for (int part = 0; part < Parts; ++part, to += tile_bytes) {
      if (count >= Vec::width) _mm256_store_si256(reinterpret_cast<__m256i*>(to), split.part[part]);
      else _mm256_mask_storeu_epi16(to, static_cast<__mmask16>((1 << count) - 1), split.part[part]);
    }
  }

  template <class Between>
  void multiply(const char* block, int64_t k_total, int rows, int64_t k0, int64_t k, const char* right, Start start,
                float* c, size_t ldc, int64_t part, int64_t parts, Between& between) const {
    const int64_t steps = padded(k) / tile_k, row_tiles = rows > tile_rows ? 2 : 1;
    const Operands from = {block + k0 / tile_k * (Parts * tile_bytes), tile_rows * row_bytes(k_total), right};
    const Sums sums = {start, c, static_cast<int64_t>(ldc), steps};
    Prefetch next(right, padded(k) * bytes_per_k, part, parts, steps * row_tiles * 2 * products);
    if (parts > 1) return sum_row_tiles<false>(row_tiles, from, sums, next, between);
    if (Parts > 1 || row_tiles > 1) return sum_row_tiles<true>(row_tiles, from, sums, next, between);
    // One vector after the other: weights that come in the order in which they lie are waited for less.
    sum<0, 1, true>(Numbers<1>{}, from, sums, next, between);
    sum<1, 1, true>(Numbers<1>{}, from, sums, next, between);
  }

 private:
  static constexpr int products = Parts == 2 ? 3 : 1;
  template <int Count>
  using Numbers = std::make_integer_sequence<int, Count>;

  // Of 32 k: tiles of the first 16 rows on the left, those of the next 16 `second` bytes later.
  struct Operands {
    const char* left;
    int64_t second;
    const char* right;
  };

  // c [rows, vectors], `width` floats a row, = start + `steps` times 32 k.
  struct Sums {
    Start start;
    float* c;
    int64_t width, steps;
  };

  // A block's share of the next unit, evenly between its dots. Four lines at a time, a quarter of the unit apart:
  // memory serves four streams faster than one.
  struct Prefetch {
    const int64_t quarter, lines, dots;  // bytes; lines of each stream
    const char* from;
    int64_t due = 0;

    Prefetch(const char* unit, int64_t bytes, int64_t part, int64_t parts, int64_t dots_)
        : quarter(bytes / 4), lines(quarter / 64 / parts), dots(dots_), from(unit + bytes + 64 * lines * part) {}

    void between_dots() {
      for (due += lines; due >= dots; due -= dots, from += 64)
        for (int stream = 0; stream < 4; ++stream) __builtin_prefetch(from + stream * quarter, 0, 2);
    }
  };

  // `count` floats and zeros.
  static __m512 load_some(const float* from, int64_t count) {
    return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1 << count) - 1), from);
  }

  // Values as one bf16, or as two whose sum has 16 bits. Infinities and NaN go to the second of two, which meets one
  // part of the other operand only: two products of unlike signs would make NaN of an infinity.
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

  // Rounds to the nearest bf16, ties to even; a NaN stays one, denormals become zero, as which the dots take them too.
  static __m256i to_bf16(__m512 x) {
#ifdef __AVX512BF16__
    return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x));
#else
    const __m512i sign = _mm512_set1_epi32(static_cast<int>(0x80000000u));
    const __m512i all = _mm512_castps_si512(x);
    const __m512i bits = _mm512_mask_and_epi32(all, _mm512_fpclass_ps_mask(x, 0x20), all, sign);
    const __m512i half = _mm512_srli_epi32(bits, 16), odd = _mm512_and_si512(half, _mm512_set1_epi32(1));
    const __m512i up = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_mask_or_epi32(_mm512_srli_epi32(up, 16), nan, half, _mm512_set1_epi32(0x40)));
#endif
  }

  // Sums of both vectors of columns. In the first level stays the left operand or the right one.
  template <bool LeftStays, class Between>
  static void sum_row_tiles(int64_t row_tiles, const Operands& from, const Sums& sums, Prefetch& next,
                            Between& between) {
    if (row_tiles == 2) sum<0, 2, LeftStays>(Numbers<4>{}, from, sums, next, between);
    else sum<0, 2, LeftStays>(Numbers<2>{}, from, sums, next, between);
  }

  // Sums `T`: vector First + T % Vectors of tile T / Vectors of rows. Inlined and flat, since around a call vectors
  // would leave their registers.
  template <int First, int Vectors, bool LeftStays, class Between, int... T>
  [[gnu::flatten, gnu::always_inline]] static inline void sum(std::integer_sequence<int, T...>, Operands from,
                                                              const Sums& sums, Prefetch& next, Between& between) {
    const auto at = [&sums](auto* to, int t) {
      return sum_at(to, sums.width, t / Vectors * tile_rows, First + t % Vectors);
    };
    const Numbers<products * sizeof...(T)> all;
    const Start start = sums.start;
    Tiles::fence();
    if (!start.rows) (Tiles::template zero<T>(), ...);
    else if (start.stride) (Tiles::template load<T>(at(start.rows, T), 64), ...);
    else (Tiles::template load<T>(start.rows + (First + T % Vectors) * Vec::width, 0), ...);
    for (int64_t k = 0; k < sums.steps; ++k, from.left += Parts * tile_bytes, from.right += 2 * Parts * tile_bytes) {
      if (between.active()) dots<First, Vectors, LeftStays>(all, from, next, between);
      else dots<First, Vectors, LeftStays>(all, from, next, Nothing());
      for (int64_t row = 1; row < between.at_once && between.active(); ++row) run_quarters(between);
    }
    (Tiles::template store<T>(at(sums.c, T), 64), ...);
    Tiles::fence();
  }

  template <int First, int Vectors, bool LeftStays, class Between, int... N>
  static void dots(std::integer_sequence<int, N...>, const Operands& from, Prefetch& next, Between&& between) {
    (dot<First, Vectors, LeftStays, N, sizeof...(N)>(from, next, between), ...);
  }

  // Dot N of `Count`: product N / (Count / products) of parts. An operand is loaded just before its first use.
  template <int First, int Vectors, bool LeftStays, int N, int Count, class Between>
  static void dot(const Operands& from, Prefetch& next, Between& between) {
    constexpr int product = N / (Count / products), t = N % (Count / products), row = t / Vectors, vector = t % Vectors;
    if constexpr (row == 0 && product != 1)
      load<6 + vector, !LeftStays>(from.right + (product + First + vector) * tile_bytes);
    if constexpr (vector == 0 && product != 2)
      load<4 + row, LeftStays>(from.left + row * from.second + (Parts - 1 - product) * tile_bytes);
    next.between_dots();
    Tiles::template dot<t, 4 + row, 6 + vector>();
    run_quarters<4 * N / Count, 4 * (N + 1) / Count>(between);
  }

  template <int T, bool Stays>
  static void load(const char* from) {
    if constexpr (Stays) Tiles::template load<T>(from, 64);
    else Tiles::template stream<T>(from);
  }
};

}  // namespace
}  // namespace elmo_fast::cpu
