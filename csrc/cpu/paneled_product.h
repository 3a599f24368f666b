// Products whose left operand is rows of a paneled matrix (backward_layout.h), read where they lie. Include after
// packed_product.h.
#pragma once

namespace {

// c [R, panel_width] += rows of `a`, `runs` panels that lie `step` floats apart, x b [runs * panel_width, panel_width].
template <int R>
void paneled_tile(const float* a, int64_t step, int64_t runs, const float* b, float* c) {
  Vec::F sum[R][2];
  ELMO_FAST_UNROLL
  for (int r = 0; r < R; ++r) sum[r][0] = sum[r][1] = Vec::set1(0.0f);
  for (; runs > 0; --runs, a += step) {
    for (int k = 0; k < panel_width; ++k, b += panel_width) {
      const Vec::F b0 = Vec::load(b);
      const Vec::F b1 = Vec::load(b + Vec::width);
      ELMO_FAST_UNROLL
      for (int r = 0; r < R; ++r) {
        const Vec::F ar = Vec::set1(a[r * panel_width + k]);
        sum[r][0] = Vec::fma(ar, b0, sum[r][0]);
        sum[r][1] = Vec::fma(ar, b1, sum[r][1]);
      }
    }
  }
  ELMO_FAST_UNROLL
  for (int r = 0; r < R; ++r) {
    float* row = c + r * panel_width;
    Vec::store(row, Vec::add(Vec::load(row), sum[r][0]));
    Vec::store(row + Vec::width, Vec::add(Vec::load(row + Vec::width), sum[r][1]));
  }
}

class PaneledProduct {
 public:
  PaneledProduct() { Fill<Vec::rows>::fill(table_); }

  // c [rows, panel_width] += left [panels, rows, panel_width], panels `step` floats apart, x right. Chains of at most
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
  using Tile = void (*)(const float*, int64_t, int64_t, const float*, float*);

  template <int R, int Unused = 0>
  struct Fill {
    static void fill(Tile* table) {
      Fill<R - 1>::fill(table);
      table[R] = paneled_tile<R>;
    }
  };
  template <int Unused>
  struct Fill<0, Unused> {
    static void fill(Tile* table) { table[0] = nullptr; }
  };

  static constexpr int64_t panels_per_chain = unit_k / panel_width;
  Tile table_[Vec::rows + 1];
};

}  // namespace
