// Products of filters with windows, and their maxima.
//
// A window is width * dim consecutive floats of its token's character vectors, so a row of the left operand begins dim
// floats after the previous row. The inner loop runs over tokens, so that a panel of filters stays in the cache.
#pragma once

#include <cmath>
#include <type_traits>

#include "../activations.h"
#include "../engine.h"
#include "../gemm/fp32.h"

namespace elmo_fast::cpu {

// The character vectors of all tokens. A token's are followed by Vec::width zeros: windows may be read past their end,
// up to a whole vector.
template <class Vec>
class CharVectors {
 public:
  CharVectors(const CharCnnPlan& plan, float* data) : plan_(plan), data_(data) {}

  static int64_t floats(const CharCnnPlan& plan) {
    return plan.character_begin[plan.tokens] * plan.dim + (plan.tokens + 1) * Vec::width;
  }
  int64_t count(int64_t token) const { return plan_.character_begin[token + 1] - plan_.character_begin[token]; }
  float* of(int64_t token) const { return data_ + plan_.character_begin[token] * plan_.dim + token * Vec::width; }
  int64_t windows(const CharBank& bank) const { return plan_.characters - bank.width + 1; }
  // The number of windows that hold more than padding; they come first.
  int64_t real_windows(int64_t token, const CharBank& bank) const {
    return smaller(plan_.lengths[token], windows(bank));
  }

  void gather(int64_t token) const {
    float* to = of(token);
    for (int64_t k = 0; k < count(token); ++k, to += plan_.dim)
      copy_floats(to, plan_.table + plan_.ids[token * plan_.characters + k] * plan_.dim, plan_.dim);
    clear_floats(to, Vec::width);
  }

 private:
  const CharCnnPlan& plan_;
  float* data_;
};

// The largest of several vectors of products. NaN stays NaN.
template <class Vec>
struct Maximum {
  using F = typename Vec::F;
  F best = Vec::set1(-INFINITY), nan = Vec::set1(0.0f);

  void add(F x, float /*at*/) {
    const F zero = Vec::set1(0.0f);
    best = Vec::at_least(best, x);
    nan += Vec::at_most(zero, Vec::at_least(zero, x));
  }
  F value() const { return best + nan; }
};

// The maximum, and the first window that has it.
template <class Vec>
struct FirstMaximum : Maximum<Vec> {
  using F = typename Vec::F;
  using Maximum<Vec>::best;
  F first = Vec::set1(0.0f);

  void add(F x, float at) {
    first = Vec::if_less(best, x, Vec::set1(at), first);
    Maximum<Vec>::add(x, at);
  }
};

// Sums [R, 2 vectors] of windows a, which begin `step` floats apart, x b [k, 2 vectors]: added to floats [R, 2
// vectors], or reduced to the maximum of each column. Step 0: passed at run time.
template <class Vec, int Step, class To>
struct WindowTile {
  using Function = void(const float*, int64_t, const float*, int64_t, To*);

  template <int R>
  static void run(const float* a, int64_t step, const float* b, int64_t k, To* to) {
    typename Vec::F sum[R][2];
    clear_sums<Vec>(sum);
    for (; k > 0; --k, ++a, b += 2 * Vec::width) add_products<Vec>(a, Step ? Step : step, b, sum);
    if constexpr (std::is_same_v<To, float>) {
      store_sums<Vec>(sum, {to, 2 * Vec::width}, to, 2 * Vec::width);
    } else {
      ELMO_FAST_UNROLL
      for (int r = 0; r < R; ++r)
        for (int v = 0; v < 2; ++v) to[v].add(sum[r][v], 0.0f);
    }
  }
};

template <class Vec>
class WindowGemm {
 public:
  explicit WindowGemm(int64_t dim) : dim_(dim) {
    if (dim == 16) fill<16>();
    else fill<0>();
  }

  // c [rows, panel_width] = products of `rows` windows, at most Vec::rows, with b [k, panel_width].
  void multiply(const float* windows, int64_t rows, const float* b, int64_t k, float* c) const {
    clear_floats(c, rows * panel_width);
    for (int64_t k0 = 0; k0 < k; k0 += unit_k)
      table_[rows](windows + k0, dim_, b + k0 * panel_width, smaller(unit_k, k - k0), c);
  }

  // The same products, of at most unit_k terms, added to the maximum without being stored.
  void largest(const float* windows, int64_t rows, const float* b, int64_t k, Maximum<Vec> found[2]) const {
    maxima_[rows](windows, dim_, b, k, found);
  }

 private:
  static constexpr int panel_width = 2 * Vec::width;

  template <int Step>
  void fill() {
    fill_tiles<WindowTile<Vec, Step, float>, Vec::rows>(table_);
    fill_tiles<WindowTile<Vec, Step, Maximum<Vec>>, Vec::rows>(maxima_);
  }

  const int64_t dim_;
  typename WindowTile<Vec, 0, float>::Function* table_[Vec::rows + 1];
  typename WindowTile<Vec, 0, Maximum<Vec>>::Function* maxima_[Vec::rows + 1];
};

// Offsets in floats into the scratch of a forward: filters [panels, width * dim, panel_width] of each bank, their
// products with a window of padding [panels, panel_width], and the characters.
template <class Vec>
struct CharCnnLayout {
  static constexpr int panel_width = 2 * Vec::width;
  int64_t padding, characters, size;
  explicit CharCnnLayout(const CharCnnPlan& plan) {
    int64_t panels = 0, floats = 0;
    for (int64_t b = 0; b < plan.bank_count; ++b) {
      const CharBank& bank = plan.banks[b];
      const int64_t count = divided_up(bank.filters, panel_width);
      panels += count;
      floats += count * bank.width * plan.dim * panel_width;
    }
    padding = floats;
    characters = padding + panels * panel_width;
    size = characters + CharVectors<Vec>::floats(plan);
  }
};

// Pool: FirstMaximum if the caller asks for picks, else Maximum.
template <class Vec, class Pool>
class CharCnnForward {
  static constexpr int panel_width = 2 * Vec::width;

 public:
  static constexpr int stages = 2;

  CharCnnForward(const CharCnnPlan& plan, int part)
      : plan_(plan), part_(part), layout_(plan), gemm_(plan_.dim),
        characters_(plan, plan.scratch + layout_.characters) {}

  void run(int stage) const {
    const Partition mine(plan_.tokens, part_, plan_.threads);
    if (stage == 0) {
      for (int64_t token = mine.begin; token < mine.end; ++token) characters_.gather(token);
      return pack_partition();
    }
    for (int64_t token = mine.begin; token < mine.end; token += tokens_at_once)
      pool_tokens(token, smaller(token + tokens_at_once, mine.end));
  }

 private:
  // Calls body(bank, panel, the panel's filters, its product with padding) for all panels of all banks.
  template <class Body>
  void each_panel(Body body) const {
    float* filters = plan_.scratch;
    float* padding = plan_.scratch + layout_.padding;
    for (int64_t b = 0; b < plan_.bank_count; ++b) {
      const CharBank& bank = plan_.banks[b];
      for (int64_t panel = 0; panel < divided_up(bank.filters, panel_width); ++panel, padding += panel_width) {
        body(bank, panel, filters, padding);
        filters += bank.width * plan_.dim * panel_width;
      }
    }
  }

  // Packs every plan_.threads-th panel.
  void pack_partition() const {
    int64_t turn = 0;
    each_panel([&](const CharBank& bank, int64_t panel, float* filters, float* padding) {
      if (turn++ % plan_.threads != part_) return;
      const int64_t k = bank.width * plan_.dim;
      const PanelSource source = plain_panel<Vec>(bank.weight, bank.filters, panel);
      Fp32Gemm<Vec>::pack_right(source, 0, k, reinterpret_cast<char*>(filters));
      padding_product(filters, k, padding);
    });
  }

  // Computes the product of a panel with a window of only padding, unit by unit as in WindowGemm.
  void padding_product(const float* panel, int64_t k, float* to) const {
    float window[unit_k], sums[panel_width];
    clear_floats(to, panel_width);
    for (int64_t k0 = 0; k0 < k; k0 += unit_k) {
      const int64_t count = smaller(unit_k, k - k0);
      for (int64_t j = 0; j < count; ++j) window[j] = plan_.table[plan_.padding * plan_.dim + (k0 + j) % plan_.dim];
      gemm_.multiply(window, 1, panel + k0 * panel_width, count, sums);
      for (int64_t j = 0; j < panel_width; ++j) to[j] += sums[j];
    }
  }

  void pool_tokens(int64_t begin, int64_t end) const {
    each_panel([&](const CharBank& bank, int64_t panel, const float* filters, const float* padding) {
      for (int64_t token = begin; token < end; ++token) pool(token, bank, panel, filters, padding);
    });
  }

  void pool(int64_t token, const CharBank& bank, int64_t panel, const float* filters, const float* padding) const {
    Pool largest[2];
    const int64_t real = characters_.real_windows(token, bank), all = characters_.windows(bank);
    const Blocks blocks(real, Vec::rows, true);
    for (int64_t b = 0; b < blocks.count; ++b)
      pool_block(characters_.of(token), blocks.begin(b), blocks.size(b), filters, bank.width * plan_.dim, largest);
    for (int v = 0; v < 2 && real < all; ++v)
      largest[v].add(Vec::load(padding + v * Vec::width), static_cast<float>(real));
    for (int v = 0; v < 2; ++v) {
      const int64_t column = panel * panel_width + v * Vec::width;
      if (column < bank.filters)
        store(largest[v], token, bank.first + column, smaller(Vec::width, bank.filters - column));
    }
  }

  // Adds `rows` windows of a token, from `first` on, to the maximum.
  void pool_block(const float* token, int64_t first, int64_t rows, const float* filters, int64_t k,
                  Pool largest[2]) const {
    if constexpr (!picks) {
      if (k <= unit_k) return gemm_.largest(token + first * plan_.dim, rows, filters, k, largest);
    }
    float products[Vec::rows * panel_width];
    gemm_.multiply(token + first * plan_.dim, rows, filters, k, products);
    for (int64_t r = 0; r < rows; ++r)
      for (int v = 0; v < 2; ++v)
        largest[v].add(Vec::load(products + r * panel_width + v * Vec::width), static_cast<float>(first + r));
  }

  void store(const Pool& largest, int64_t token, int64_t column, int64_t count) const {
    float values[Vec::width] = {}, firsts[Vec::width];
    if (plan_.biases) copy_floats(values, plan_.biases + column, count);
    const typename Vec::F value = largest.value() + Vec::load(values);
    Vec::store(values, plan_.activation == Activation::relu ? Vec::at_least(Vec::set1(0.0f), value)
                                                            : ExactActivations<Vec>::tanh(value));
    const int64_t at = token * plan_.filters + column;
    copy_floats(plan_.values + at, values, count);
    if constexpr (picks) {
      Vec::store(firsts, largest.first);
      for (int64_t k = 0; k < count; ++k) plan_.picks[at + k] = uint32_t(firsts[k]);
    }
  }

  static constexpr int64_t tokens_at_once = 64;
  static constexpr bool picks = std::is_same_v<Pool, FirstMaximum<Vec>>;

  const CharCnnPlan& plan_;
  const int part_;
  const CharCnnLayout<Vec> layout_;
  const WindowGemm<Vec> gemm_;
  const CharVectors<Vec> characters_;
};

}  // namespace elmo_fast::cpu
