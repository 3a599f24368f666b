// The loop of products on tiles: a block of rows x both vectors of columns of a unit of a panel. Operands are bf16, in
// one or two parts, or 8-bit integers.
//
// Sums, per 16 rows: one tile [16 rows, 16 columns] per vector of columns.
//
// A dot takes 16 cycles, a load from the L1 cache 8: the tile unit is saturated only if no load waits for L2. One
// operand stays in L1 and the other bypasses it: a unit of a panel, 16 or 32 KiB, stays while all blocks of rows are
// multiplied; a single block of rows stays while all panels are multiplied. Between any two dots, lines of the next
// unit are prefetched and other work runs.
#pragma once

#include <utility>

#include "../vec/avx512.h"
#include "packing.h"
#include "tiles.h"

namespace elmo_fast::cpu {

// Internal linkage, as for Avx512Vec.
namespace {

constexpr int64_t tile_bytes = 1024;
constexpr int64_t tile_rows = 16;

// With Bytes, operands are signed 8-bit integers and sums are int32, stored in buffers of floats.
template <int Parts, bool Bytes>
class TileProduct {
  using Vec = Avx512Vec;

 public:
  // Tiles of a step in k: `left` has the first 16 rows, and the next 16 rows `second` bytes later.
  struct Operands {
    const char* left;
    int64_t second;
    const char* right;
  };

  // c [rows, vectors] = start + the sum of `steps` steps in k; c has `width` floats per row.
  struct Sums {
    Start start;
    float* c;
    int64_t width, steps;
  };

  // Vector v of row r in sums with `width` floats per row.
  template <class Float>
  static Float* sum_at(Float* sums, int64_t width, int64_t r, int64_t v) {
    return sums + (r >> 4) * (tile_rows * width) + v * (tile_rows * Vec::width) + (r & 15) * Vec::width;
  }

  // Block `part` of the `parts` blocks of rows that share the right operand, which has `bytes` bytes, as the next one.
  template <class Between>
  static void multiply(const Operands& from, const Sums& sums, int rows, const char* next_unit, int64_t bytes,
                       int64_t part, int64_t parts, Between& between) {
    const int64_t row_tiles = rows > tile_rows ? 2 : 1;
    Prefetch next(next_unit, bytes, part, parts, sums.steps * row_tiles * 2 * products);
    if (parts > 1) return sum_row_tiles<false>(row_tiles, from, sums, next, between);
    if (Parts > 1 || row_tiles > 1) return sum_row_tiles<true>(row_tiles, from, sums, next, between);
    // One vector after the other, since weights that are read in memory order arrive faster.
    sum<0, 1, true>(Numbers<1>{}, from, sums, next, between);
    sum<1, 1, true>(Numbers<1>{}, from, sums, next, between);
  }

 private:
  static constexpr int products = Parts == 2 ? 3 : 1;
  template <int Count>
  using Numbers = std::make_integer_sequence<int, Count>;

  // Prefetches a block's share of the next unit, evenly distributed between its dots, four lines at a time that are a
  // quarter of the unit apart: four streams are faster than one.
  struct Prefetch {
    const int64_t quarter, lines, dots;  // bytes; lines per stream
    const char* from;
    int64_t due = 0;

    Prefetch(const char* unit, int64_t bytes, int64_t part, int64_t parts, int64_t dots_)
        : quarter(bytes / 4), lines(quarter / 64 / parts), dots(dots_), from(unit + 64 * lines * part) {}

    void between_dots() {
      for (due += lines; due >= dots; due -= dots, from += 64)
        for (int stream = 0; stream < 4; ++stream) __builtin_prefetch(from + stream * quarter, 0, 2);
    }
  };

  // Sums both vectors of columns. The left operand stays in L1 if LeftStays, else the right one.
  template <bool LeftStays, class Between>
  static void sum_row_tiles(int64_t row_tiles, const Operands& from, const Sums& sums, Prefetch& next,
                            Between& between) {
    if (row_tiles == 2) sum<0, 2, LeftStays>(Numbers<4>{}, from, sums, next, between);
    else sum<0, 2, LeftStays>(Numbers<2>{}, from, sums, next, between);
  }

  // Sum T is vector First + T % Vectors of row tile T / Vectors. Inlined and flattened, since a call would spill vector
  // registers.
  template <int First, int Vectors, bool LeftStays, class Between, int... T>
  [[gnu::flatten, gnu::always_inline]] static inline void sum(std::integer_sequence<int, T...>, Operands from,
                                                              const Sums& sums, Prefetch& next, Between& between) {
    const auto at = [&sums](auto* to, int t) {
      return sum_at(to, sums.width, t / Vectors * tile_rows, First + t % Vectors);
    };
    const Numbers<products * sizeof...(T)> all;
    const Start start = sums.start;
    Tiles::fence();
    if (!start.rows) (Tiles::zero<T>(), ...);
    else if (start.stride) (Tiles::load<T>(at(start.rows, T), 64), ...);
    else (Tiles::load<T>(start.rows + (First + T % Vectors) * Vec::width, 0), ...);
    for (int64_t k = 0; k < sums.steps; ++k, from.left += Parts * tile_bytes, from.right += 2 * Parts * tile_bytes) {
      if (between.active()) dots<First, Vectors, LeftStays>(all, from, next, between);
      else dots<First, Vectors, LeftStays>(all, from, next, Nothing());
      for (int64_t row = 1; row < between.at_once && between.active(); ++row) run_quarters(between);
    }
    (Tiles::store<T>(at(sums.c, T), 64), ...);
    Tiles::fence();
  }

  template <int First, int Vectors, bool LeftStays, class Between, int... N>
  static void dots(std::integer_sequence<int, N...>, const Operands& from, Prefetch& next, Between&& between) {
    (dot<First, Vectors, LeftStays, N, sizeof...(N)>(from, next, between), ...);
  }

  // Dot N of `Count`: product N / (Count / products) of parts. Operands are loaded just before their first use.
  template <int First, int Vectors, bool LeftStays, int N, int Count, class Between>
  static void dot(const Operands& from, Prefetch& next, Between& between) {
    constexpr int product = N / (Count / products), t = N % (Count / products), row = t / Vectors, vector = t % Vectors;
    if constexpr (row == 0 && product != 1)
      load<6 + vector, !LeftStays>(from.right + (product + First + vector) * tile_bytes);
    if constexpr (vector == 0 && product != 2)
      load<4 + row, LeftStays>(from.left + row * from.second + (Parts - 1 - product) * tile_bytes);
    next.between_dots();
    if constexpr (Bytes) Tiles::dot_bytes<t, 4 + row, 6 + vector>();
    else Tiles::dot<t, 4 + row, 6 + vector>();
    run_quarters<4 * N / Count, 4 * (N + 1) / Count>(between);
  }

  template <int T, bool Stays>
  static void load(const char* from) {
    if constexpr (Stays) Tiles::load<T>(from, 64);
    else Tiles::stream<T>(from);
  }
};

}  // namespace
}  // namespace elmo_fast::cpu
