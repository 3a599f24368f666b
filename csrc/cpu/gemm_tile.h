// fp32 register-tile products over packed operands. Include after one vec_*.h.
//
// The right operand is packed in panels of 2 vectors (`panel_width` columns), each panel in units of at most
// `unit_k` rows: [k, panel_width]. The left operand is packed in blocks of at most Vec::rows rows, transposed:
// [k, rows of the block]. Every output element is the sum, in order of k, of chains of at most `unit_k` products;
// the shape of the register tile does not enter, so a row has the same bits in any block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__clang__)
#define ELMO_FAST_UNROLL _Pragma("clang loop unroll(full)")
#else
#define ELMO_FAST_UNROLL _Pragma("GCC unroll 16")
#endif

namespace {

constexpr int panel_width = 2 * Vec::width;
constexpr int64_t unit_k = 256;

// Where sums begin: rows of 2 vectors, `stride` floats apart; with 0 one row that all begin from.
struct Start {
  const float* rows;
  size_t stride;
  Start from(int64_t row) const { return {rows + static_cast<size_t>(row) * stride, stride}; }
};

// c [R, 2 vectors, row stride ldc] = start + a [k, R] x b [k, panel_width]; touches `Ahead` cache lines of `ahead` per
// k.
template <int R, int Ahead>
void tile_product(const float* a, const float* b, int64_t k, Start start, float* c, size_t ldc, const char* ahead) {
  Vec::F sum[R][2];
  ELMO_FAST_UNROLL
  for (int r = 0; r < R; ++r) sum[r][0] = sum[r][1] = Vec::set1(0.0f);
  for (; k > 0; --k) {
    const Vec::F b0 = Vec::load(b);
    const Vec::F b1 = Vec::load(b + Vec::width);
    if (Ahead > 0) __builtin_prefetch(ahead, 0, 2);
    if (Ahead > 1) __builtin_prefetch(ahead + 64, 0, 2);
    ELMO_FAST_UNROLL
    for (int r = 0; r < R; ++r) {
      const Vec::F ar = Vec::set1(a[r]);
      sum[r][0] = Vec::fma(ar, b0, sum[r][0]);
      sum[r][1] = Vec::fma(ar, b1, sum[r][1]);
    }
    a += R;
    b += panel_width;
    ahead += 64 * Ahead;
  }
  ELMO_FAST_UNROLL
  for (int r = 0; r < R; ++r) {
    const float* from = start.rows + r * start.stride;
    float* to = c + r * ldc;
    Vec::store(to, Vec::add(Vec::load(from), sum[r][0]));
    Vec::store(to + Vec::width, Vec::add(Vec::load(from + Vec::width), sum[r][1]));
  }
}

using TileProduct = void (*)(const float*, const float*, int64_t, Start, float*, size_t, const char*);

template <int Ahead, int R>
struct TileTable {
  static void fill(TileProduct* table) {
    TileTable<Ahead, R - 1>::fill(table);
    table[R] = tile_product<R, Ahead>;
  }
};

template <int Ahead>
struct TileTable<Ahead, 0> {
  static void fill(TileProduct* table) { table[0] = nullptr; }
};

// The panel of 2 vectors to pack: where each starts in a row-major matrix and how many columns it has there.
struct PanelSource {
  const float* start[2];
  int64_t columns[2];
  int64_t stride;
};

// Splits `rows` rows into the fewest blocks of at most `most` rows: evenly, or full ones and a rest.
struct Blocks {
  int64_t count, base, larger, most, rows;
  bool even;
  Blocks(int64_t rows_, int64_t most_, bool even_)
      : count((rows_ + most_ - 1) / most_), base(count ? rows_ / count : 0), larger(count ? rows_ % count : 0),
        most(most_), rows(rows_), even(even_) {}
  int64_t begin(int64_t block) const {
    return even ? block * base + (block < larger ? block : larger) : block * most;
  }
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

// Rows of fp32, where 16-bit ones could stand.
struct FloatRows {
  using Value = float;
  static Vec::F get(const float* from) { return Vec::load(from); }
  static void put(Vec::F x, float* to) { Vec::store(to, x); }
};

// The fp32 product as the loops see it: how operands are packed, and c = start + left x right over one unit of k.
struct Fp32Product {
  using Activations = ExactActivations;
  using Ahead = FloatRows;  // x W + B of rows to come
  static constexpr int block_rows = Vec::rows;
  static constexpr int64_t cached_rows = 112;  // of a left operand with some thousand columns, in a core's own cache
  static constexpr int64_t unit = unit_k;
  static constexpr bool interleaves = false;
  static constexpr int64_t bytes_per_k = panel_width * sizeof(float);

  static Blocks blocks(int64_t rows) { return Blocks(rows, block_rows, true); }
  static int64_t buffer_rows(int64_t rows) { return rows; }
  static int64_t padded(int64_t k) { return k; }
  static int64_t row_bytes(int64_t k) { return k * static_cast<int64_t>(sizeof(float)); }

  Fp32Product() {
    TileTable<0, Vec::rows>::fill(table_[0]);
    TileTable<1, Vec::rows>::fill(table_[1]);
    TileTable<2, Vec::rows>::fill(table_[2]);
  }

  // Around products with left operands of `rows` rows in all.
  void begin(int64_t /*rows*/) const {}
  void end() const {}

  // Rows [k0, k0 + k) of the panel.
  static void pack_right(const PanelSource& source, int64_t k0, int64_t k, char* packed) {
    float* out = reinterpret_cast<float*>(packed);
    for (int64_t row = k0; row < k0 + k; ++row, out += panel_width) {
      for (int v = 0; v < 2; ++v) {
        const float* from = source.start[v] + row * source.stride;
        for (int64_t col = 0; col < Vec::width; ++col)
          out[v * Vec::width + col] = col < source.columns[v] ? from[col] : 0.0f;
      }
    }
  }

  // values [count] become columns [k0, k0 + count) of row r in a block of `rows` rows.
  static void put_left(char* block, int64_t /*k_total*/, int rows, int r, int64_t k0, int64_t count,
                       const float* values) {
    float* out = reinterpret_cast<float*>(block) + k0 * rows + r;
    for (int64_t k = 0; k < count; ++k) out[k * rows] = values[k];
  }

  // c [rows, panel_width, row stride ldc] = start + left[:, k0 : k0 + k] x right, a unit of k rows. Prefetches the
  // `share`-th part of the unit that follows `right` in memory.
  template <class Between>
  void multiply(const char* block, int64_t /*k_total*/, int rows, int64_t k0, int64_t k, const char* right, Start start,
                float* c, size_t ldc, int64_t share, int64_t shares, Between& /*between*/) const {
    const int lines = shares == 1 ? 2 : share < 2 ? 1 : 0;  // per k; a unit has two lines per k
    const char* ahead = right + k * bytes_per_k + (lines == 1 ? share * k * 64 : 0);
    table_[lines][rows](reinterpret_cast<const float*>(block) + k0 * rows, reinterpret_cast<const float*>(right), k,
                        start, c, ldc, ahead);
  }

 private:
  TileProduct table_[3][Vec::rows + 1];
};

}  // namespace
