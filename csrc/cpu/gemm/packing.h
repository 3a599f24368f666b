// Packed operands of a product, shared by the fp32 and the bf16 kernels, and products over all blocks of rows.
//
// The right operand is packed in panels of 2 vectors (`panel_width` columns), a panel in units of at most Gemm::unit
// rows. The left operand is packed in blocks of rows. A Gemm class defines the layout of both (fp32.h, amx.h, int8.h,
// amx_int8.h). If it `takes_units`, rows of the left operand are given by units of k, else by any number of columns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__clang__)
#define ELMO_FAST_UNROLL _Pragma("clang loop unroll(full)")
#else
#define ELMO_FAST_UNROLL _Pragma("GCC unroll 16")
#endif

namespace elmo_fast::cpu {

// Internal linkage: these functions are compiled once per instruction set.
namespace {

inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t larger(int64_t a, int64_t b) { return a < b ? b : a; }
inline int64_t divided_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline size_t float_bytes(int64_t count) { return static_cast<size_t>(count) * sizeof(float); }
inline void copy_floats(float* to, const float* from, int64_t count) { std::memcpy(to, from, float_bytes(count)); }
inline void clear_floats(float* to, int64_t count) { std::memset(to, 0, float_bytes(count)); }
inline size_t aligned64(int64_t bytes) { return (static_cast<size_t>(bytes) + 63) / 64 * 64; }

// Allocates consecutive buffers, aligned to cache lines: offsets in bytes.
struct Offsets {
  size_t size = 0;
  size_t take(int64_t bytes) {
    const size_t begin = size;
    size += aligned64(bytes);
    return begin;
  }
  size_t take_floats(int64_t count) { return take(count * int64_t(sizeof(float))); }
};

// Partition `rank` of `size` of [0, count).
struct Partition {
  int64_t begin, end;
  Partition(int64_t begin_, int64_t end_) : begin(begin_), end(end_) {}
  Partition(int64_t count, int rank, int size) : Partition(count * rank / size, count * (rank + 1) / size) {}
  int64_t count() const { return end - begin; }
  int64_t at(int64_t k, bool reversed) const { return reversed ? end - 1 - k : begin + k; }
};

// Initial values of sums: rows of 2 vectors, `stride` floats apart; with stride 0 a single row for all; null: zeros.
struct Start {
  const float* rows;
  size_t stride;
  Start from(int64_t row) const { return stride ? Start{rows + static_cast<size_t>(row) * stride, stride} : *this; }
};

// A unit of a right operand, and the unit that is multiplied after it, which is prefetched meanwhile.
struct RightUnit {
  const char* data;
  const char* next;
};

// A panel of 2 vectors to pack: the start of each vector in a row-major matrix and its number of columns.
struct PanelSource {
  const float* start[2];
  int64_t columns[2];
  int64_t stride;
};

// Splits `rows` rows into the fewest blocks of at most `most` rows: of even sizes, or all full except the last.
struct Blocks {
  int64_t count, base, larger, most, rows;
  bool even;
  Blocks(int64_t rows_, int64_t most_, bool even_)
      : count((rows_ + most_ - 1) / most_), base(count ? rows_ / count : 0), larger(count ? rows_ % count : 0),
        most(most_), rows(rows_), even(even_) {}
  int64_t begin(int64_t block) const { return even ? block * base + (block < larger ? block : larger) : block * most; }
  int64_t find(int64_t row) const {
    if (!even) return row / most;
    const int64_t in_larger = larger * (base + 1);
    return row < in_larger ? row / (base + 1) : larger + (row - in_larger) / base;
  }
  int size(int64_t block) const {
    if (even) return static_cast<int>(base + (block < larger ? 1 : 0));
    return static_cast<int>(block + 1 < count ? most : rows - block * most);
  }
};

// One of the four quarters, 0 to 3, of the work on a row.
template <int Number>
using Quarter = std::integral_constant<int, Number>;

// Rows of a tile's sums [rows, gate_width]. Their quarters run between the dots of the next tile's product.
template <class Gemm>
struct RowsBetween {
  using Vec = typename Gemm::Vec;
  static constexpr int64_t gate_width = 2 * Gemm::panel_width;
  int64_t at_once = 0, rows = 0, row = 0;  // at_once: rows per k-step
  const float* sums = nullptr;
  bool active() const { return row < rows; }
  typename Vec::F sum(int64_t gate) const { return Vec::load(Gemm::sum_at(sums, gate_width, row, gate)); }
};

struct Nothing {
  static constexpr int64_t at_once = 0;
  static constexpr bool active() { return false; }
  template <int Number>
  void operator()(Quarter<Number>) const {}
};

template <int First = 0, int End = 4, class Rows>
void run_quarters(Rows& rows) {
  if constexpr (First < End) {
    rows(Quarter<First>{});
    run_quarters<First + 1, End>(rows);
  }
}

// Out of line: inlined, it takes registers from the loops around it, and a sentence in `low` takes a tenth longer.
template <class Rows>
[[gnu::noinline]] void finish_rows(Rows& rows) {
  while (rows.active()) run_quarters(rows);
}

}  // namespace

// Columns [panel * panel_width, ...) of a row-major [k, columns] matrix.
template <class Vec>
PanelSource plain_panel(const float* weight, int64_t columns, int64_t panel) {
  const int64_t first = panel * 2 * Vec::width;
  const int64_t second = first + Vec::width < columns ? first + Vec::width : columns;
  return {{weight + first, weight + second},
          {smaller(Vec::width, columns - first), smaller(Vec::width, columns - second)},
          columns};
}

template <class Gemm>
int64_t panel_bytes(int64_t k) {
  return Gemm::padded(k) * Gemm::bytes_per_k + divided_up(k, Gemm::unit) * Gemm::bytes_per_unit;
}

template <class Gemm>
void pack_panel(const PanelSource& source, int64_t k, char* packed) {
  for (int64_t k0 = 0; k0 < k; k0 += Gemm::unit) {
    const int64_t count = smaller(Gemm::unit, k - k0);
    Gemm::pack_right(source, k0, count, packed);
    packed += panel_bytes<Gemm>(count);
  }
}

// A left operand: consecutive blocks of rows [rows, k].
template <class Gemm>
struct Left {
  char* data;
  int64_t k;
  char* block(const Blocks& blocks, int64_t b) const { return data + blocks.begin(b) * Gemm::row_bytes(k); }

  // values [count] become columns [k0, k0 + count) of a row of block b.
  void put(const Blocks& blocks, int64_t b, int64_t row, int64_t k0, int64_t count, const float* values) const {
    const int in_block = static_cast<int>(row - blocks.begin(b));
    Gemm::put_left(block(blocks, b), k, blocks.size(b), in_block, k0, count, values);
  }

  // Packs rows `row_of(row)` [k] of the blocks `mine`.
  template <class RowOf>
  void gather(const Blocks& blocks, const Partition& mine, RowOf row_of) const {
    for (int64_t b = mine.begin; b < mine.end; ++b)
      for (int64_t row = blocks.begin(b); row < blocks.begin(b) + blocks.size(b); ++row)
        put(blocks, b, row, 0, k, row_of(row));
  }
};

template <class Gemm>
size_t left_bytes(int64_t rows, int64_t k) {
  return aligned64(rows * Gemm::row_bytes(k));
}

// c [rows, panel_width] = start + left x the unit of k that begins at k0; c has ldc floats per row (Gemm::sum_at). An
// interleaving product runs quarters of `between` in every k-step.
template <class Gemm, class Between = const Nothing>
void multiply_unit(const Gemm& gemm, const Left<Gemm>& left, const Blocks& blocks, int64_t k0, const RightUnit& right,
                   Start start, float* c, size_t ldc, Between& between = {}) {
  const int64_t k = smaller(Gemm::unit, left.k - k0);
  for (int64_t b = 0; b < blocks.count; ++b)
    gemm.multiply(left.block(blocks, b), left.k, blocks.size(b), k0, k, right, start.from(blocks.begin(b)),
                  c + blocks.begin(b) * ldc, ldc, b, blocks.count, between);
}

// multiply_unit over all units of a panel, in order. `after`: the panel that follows, by default the next in memory.
template <class Gemm, class Between = const Nothing>
void multiply_panel(const Gemm& gemm, const Left<Gemm>& left, const Blocks& blocks, const char* right, Start start,
                    float* c, size_t ldc, Between& between = {}, const char* after = nullptr) {
  for (int64_t k0 = 0; k0 < left.k; k0 += Gemm::unit) {
    const char* const follows = right + panel_bytes<Gemm>(smaller(Gemm::unit, left.k - k0));
    const char* const next = after && k0 + Gemm::unit >= left.k ? after : follows;
    multiply_unit(gemm, left, blocks, k0, {right, next}, k0 ? Start{c, ldc} : start, c, ldc, between);
    right = follows;
  }
}

// Products of `left` with both panels of every tile, alternating between the two halves of `sums`, tiles
// [rows, gate_width]. `rows` processes a tile's sums between the dots of the next tile; after the last tile the caller
// calls finish_rows.
template <class Gemm, class Rows>
void multiply_tiles(const Gemm& gemm, const Left<Gemm>& left, const Blocks& blocks, const char* right,
                    const Partition& tiles, float* sums, Rows& rows) {
  constexpr int64_t gate_width = 2 * Gemm::panel_width;
  rows.at_once = divided_up(blocks.rows, 2 * blocks.count * Gemm::padded(left.k) / Gemm::padded(1));
  for (int64_t tile = tiles.begin; tile < tiles.end; ++tile) {
    float* const z = sums + (tile & 1) * Gemm::buffer_rows(blocks.rows) * gate_width;
    for (int64_t panel = 0; panel < 2; ++panel)
      multiply_panel(gemm, left, blocks, right + (2 * tile + panel) * panel_bytes<Gemm>(left.k), {},
                     Gemm::sum_at(z, gate_width, 0, 2 * panel), gate_width, rows);
    finish_rows(rows);
    rows.rows = blocks.rows;
    rows.row = 0;
    rows.sums = z;
    rows.begin(tile);
  }
}

}  // namespace elmo_fast::cpu
