// Products with fp32 sums on register tiles over packed operands.
//
// Right operand: panels of units [k, panel_width], k at most unit_k, in fp32, in a narrower type (bf16_weights.h) or in
// pairs of bf16 (bf16_dots.h). Left operand: blocks of at most Vec::rows rows, transposed: [k, rows of the block].
// Every output element is the sum, in order of k, of chains of at most `unit_k` products, independent of the shape of
// the register tile, so a row has the same bits in any block.
#pragma once

#include "../activations.h"
#include "input_rows.h"
#include "packing.h"

namespace elmo_fast::cpu {

constexpr int64_t unit_k = 256;

// c [R, 2 vectors] = start + sum
template <class Vec, int R>
inline __attribute__((always_inline)) void store_sums(const typename Vec::F (&sum)[R][2], Start start, float* c,
                                                      size_t ldc) {
  ELMO_FAST_UNROLL
  for (int r = 0; r < R; ++r) {
    const float* from = start.rows + r * start.stride;
    float* to = c + r * ldc;
    Vec::store(to, Vec::load(from) + sum[r][0]);
    Vec::store(to + Vec::width, Vec::load(from + Vec::width) + sum[r][1]);
  }
}

template <class Vec, int R>
inline __attribute__((always_inline)) void clear_sums(typename Vec::F (&sum)[R][2]) {
  ELMO_FAST_UNROLL
  for (int r = 0; r < R; ++r) sum[r][0] = sum[r][1] = Vec::set1(0.0f);
}

// One product at a time, in fp32.
template <class Vec>
struct FloatProducts {
  using Activations = ExactActivations<Vec>;
  static constexpr int64_t depth = 1;  // k per multiplication

  static typename Vec::F add(typename Vec::F sum, typename Vec::F a, typename Vec::F b) { return Vec::fma(a, b, sum); }
  // values [count] -> column by column of a left operand with `rows` rows.
  static void put_left(const float* values, int64_t count, int rows, float* to) {
    for (int64_t k = 0; k < count; ++k) to[k * rows] = values[k];
  }
};

// How the packed right operand stores the 2 vectors of `depth` k.
template <class Vec>
struct FloatColumns : FloatProducts<Vec> {
  static constexpr int64_t bytes = 2 * Vec::width * sizeof(float);
  static constexpr int lines = 4;  // prefetched for every second multiplication
  static constexpr bool is_narrow = false;

  static void store(const float* from, char* to) { std::memcpy(to, from, bytes); }
  static void load(const char* from, typename Vec::F (&to)[2]) {
    to[0] = Vec::load(reinterpret_cast<const float*>(from));
    to[1] = Vec::load(reinterpret_cast<const float*>(from) + Vec::width);
  }
};

// sum [R, 2 vectors] += a [R] x b [2 vectors]; rows of a are `step` floats apart.
template <class Vec, class Products, int R>
inline __attribute__((always_inline)) void add_products(const float* a, int64_t step, const typename Vec::F (&b)[2],
                                                        typename Vec::F (&sum)[R][2]) {
  ELMO_FAST_UNROLL
  for (int r = 0; r < R; ++r) {
    const typename Vec::F ar = Vec::set1(a[r * step]);
    sum[r][0] = Products::add(sum[r][0], ar, b[0]);
    sum[r][1] = Products::add(sum[r][1], ar, b[1]);
  }
}

template <class Vec, int R>
inline __attribute__((always_inline)) void add_products(const float* a, int64_t step, const float* b,
                                                        typename Vec::F (&sum)[R][2]) {
  const typename Vec::F columns[2] = {Vec::load(b), Vec::load(b + Vec::width)};
  add_products<Vec, FloatProducts<Vec>>(a, step, columns, sum);
}

// table[r] = Tile::template run<r> for tiles of r = 1 to R rows.
template <class Tile, int R, class Function>
void fill_tiles(Function** table) {
  if constexpr (R == 0) {
    table[0] = nullptr;
  } else {
    fill_tiles<Tile, R - 1>(table);
    table[R] = Tile::template run<R>;
  }
}

// c [R, 2 vectors, row stride ldc] = start + a [k, R] x b [k, panel_width], k in multiplications; prefetches `Lines`
// cache lines, beginning at `next`, for every second one.
template <class Vec, class Columns, int Lines>
struct PackedTile {
  using Function = void(const float*, const char*, int64_t, Start, float*, size_t, const char*);

  template <int R>
  static void run(const float* a, const char* b, int64_t k, Start start, float* c, size_t ldc, const char* next) {
    typename Vec::F sum[R][2];
    clear_sums<Vec>(sum);
    const auto add = [&] {
      typename Vec::F columns[2];
      Columns::load(b, columns);
      add_products<Vec, Columns>(a, 1, columns, sum);
      a += R;
      b += Columns::bytes;
    };
    for (; k > 1; k -= 2, next += 64 * Lines) {
      ELMO_FAST_UNROLL
      for (int line = 0; line < Lines; ++line) __builtin_prefetch(next + 64 * line, 0, 2);
      add(), add();
    }
    if (k) add();
    store_sums<Vec>(sum, start, c, ldc);
  }
};

// The product: layout of packed operands, and c = start + left x right over a unit of k.
template <class Vec_, class Columns = FloatColumns<Vec_>>
struct Fp32Gemm {
  using Vec = Vec_;
  using Activations = typename Columns::Activations;
  using InputRows = FloatRows<Vec>;  // x W + B
  static constexpr int panel_width = 2 * Vec::width;
  static constexpr int block_rows = Vec::rows;
  static constexpr int64_t depth = Columns::depth;
  static constexpr int64_t cached_rows = 112 * depth;  // with a few thousand columns they fit in a core's cache
  static constexpr int64_t unit = unit_k;
  static constexpr bool interleaves = false, takes_units = false;
  static constexpr int64_t bytes_per_k = Columns::bytes / depth, bytes_per_unit = 0;

  static Blocks blocks(int64_t rows) { return Blocks(rows, block_rows, true); }
  static int64_t buffer_rows(int64_t rows) { return rows; }
  static int64_t padded(int64_t k) { return divided_up(k, depth) * depth; }
  static int64_t row_bytes(int64_t k) { return divided_up(k, depth) * static_cast<int64_t>(sizeof(float)); }

  // Vector v of row r in sums with `width` floats per row.
  template <class Float>
  static Float* sum_at(Float* sums, int64_t width, int64_t r, int64_t v) {
    return sums + r * width + v * Vec::width;
  }

  Fp32Gemm() {
    fill<Columns>(table_);
    if constexpr (Columns::is_narrow) fill<FloatColumns<Vec>>(of_floats_);
  }

  // Called before and after products with left operands of `rows` rows.
  void begin(int64_t /*rows*/) const {}
  void end() const {}

  // Rows [k0, k0 + k) of the panel.
  static void pack_right(const PanelSource& source, int64_t k0, int64_t k, char* packed) {
    for (int64_t row = k0; row < k0 + k; row += depth, packed += Columns::bytes) {
      float columns[depth * panel_width] = {};
      for (int64_t d = 0; d < smaller(depth, k0 + k - row); ++d)
        for (int v = 0; v < 2; ++v)
          copy_floats(columns + d * panel_width + v * Vec::width, source.start[v] + (row + d) * source.stride,
                      larger(source.columns[v], 0));
      Columns::store(columns, packed);
    }
  }

  // Writes values [count] to columns [k0, k0 + count) of row r in a block of `rows` rows; k0 is a multiple of `depth`.
  static void put_left(char* block, int64_t /*k_total*/, int rows, int r, int64_t k0, int64_t count,
                       const float* values) {
    Columns::put_left(values, count, rows, reinterpret_cast<float*>(block) + k0 / depth * rows + r);
  }

  // c [rows, panel_width, row stride ldc] = start + left[:, k0 : k0 + k] x right, a unit of k rows. Prefetches the
  // `part`-th of `parts` of the next unit.
  template <class Between>
  void multiply(const char* block, int64_t /*k_total*/, int rows, int64_t k0, int64_t k, const RightUnit& right,
                Start start, float* c, size_t ldc, int64_t part, int64_t parts, Between& /*between*/) const {
    // Prefetches occupy the buffers that misses of the L1 cache need, so up to four blocks share the lines of a unit.
    const int blocks = parts < 2 ? 1 : parts < 4 ? 2 : 4, sharing = blocks < Columns::lines ? blocks : Columns::lines;
    const int lines = Columns::lines / sharing;
    k = divided_up(k, depth);
    const char* next = right.next + part * (k / 2) * (64 * lines);
    static constexpr float zeros[panel_width] = {};
    if (!start.rows) start = {zeros, 0};
    const char* columns = right.data;
    const Tile(*tiles)[Vec::rows + 1] = table_;
    if constexpr (Columns::is_narrow) {
      if (parts >= widened_parts) {  // which come one after the other
        if (part == 0) widen(columns, k);
        columns = reinterpret_cast<const char*>(floats_);
        tiles = of_floats_;
      }
    }
    tiles[part < sharing ? lines : 0][rows](reinterpret_cast<const float*>(block) + k0 / depth * rows, columns, k,
                                            start, c, ldc, next);
  }

 private:
  using Tile = typename PackedTile<Vec, Columns, 0>::Function*;
  static constexpr int64_t widened_parts = 3;  // blocks of rows for which a narrow unit is widened once

  template <class Of>
  static void fill(Tile (&table)[5][Vec::rows + 1]) {
    fill_tiles<PackedTile<Vec, Of, 0>, Vec::rows>(table[0]);
    fill_tiles<PackedTile<Vec, Of, 1>, Vec::rows>(table[1]);
    if constexpr (Columns::lines >= 2) fill_tiles<PackedTile<Vec, Of, 2>, Vec::rows>(table[2]);
    if constexpr (Columns::lines >= 4) fill_tiles<PackedTile<Vec, Of, 4>, Vec::rows>(table[4]);
  }

  void widen(const char* unit, int64_t k) const {
    for (float* to = floats_; k > 0; --k, unit += Columns::bytes, to += panel_width) {
      typename Vec::F columns[2];
      Columns::load(unit, columns);
      Vec::store(to, columns[0]);
      Vec::store(to + Vec::width, columns[1]);
    }
  }

  Tile table_[5][Vec::rows + 1];  // by prefetched lines and rows of PackedTile
  Tile of_floats_[Columns::is_narrow ? 5 : 1][Vec::rows + 1];
  alignas(64) mutable float floats_[Columns::is_narrow ? unit_k * panel_width : 1];
};

// c [R, panel_width] += a x b [runs * panel_width, panel_width]; a has rows in `runs` panels, `step` floats apart.
template <class Vec>
struct PaneledTile {
  using Function = void(const float*, int64_t, int64_t, const float*, float*);

  template <int R>
  static void run(const float* a, int64_t step, int64_t runs, const float* b, float* c) {
    constexpr int panel_width = 2 * Vec::width;
    typename Vec::F sum[R][2];
    clear_sums<Vec>(sum);
    for (; runs > 0; --runs, a += step)
      for (int k = 0; k < panel_width; ++k, b += panel_width) add_products<Vec>(a + k, panel_width, b, sum);
    store_sums<Vec>(sum, {c, panel_width}, c, panel_width);
  }
};

// Products whose left operand is rows of a paneled matrix (lstm/layout.h), read in place.
template <class Vec>
class PaneledGemm {
 public:
  PaneledGemm() { fill_tiles<PaneledTile<Vec>, Vec::rows>(table_); }

  // c [rows, panel_width] += left [panels, rows, panel_width] x right, panels `step` floats apart, in chains of at most
  // unit_k products, in order.
  void multiply(const float* left, int64_t step, int64_t panels, int64_t rows, const float* right, float* c) const {
    const Blocks blocks(rows, Vec::rows, true);
    for (int64_t first = 0; first < panels; first += panels_per_chain) {
      const int64_t runs = smaller(panels_per_chain, panels - first);
      for (int64_t b = 0; b < blocks.count; ++b) {
        const int64_t row = blocks.begin(b) * panel_width;
        table_[blocks.size(b)](left + first * step + row, step, runs, right + first * panel_width * panel_width,
                               c + row);
      }
    }
  }

 private:
  static constexpr int panel_width = 2 * Vec::width;
  static constexpr int64_t panels_per_chain = unit_k / panel_width;
  typename PaneledTile<Vec>::Function* table_[Vec::rows + 1];
};

}  // namespace elmo_fast::cpu
