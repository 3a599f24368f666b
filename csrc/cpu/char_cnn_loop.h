// Products of filters with windows, and their maxima. Include after gemm_tile.h, packed_product.h and char_cnn_plan.h.
//
// A window is a run of width * dim floats among its token's character vectors, so a row of the left operand begins dim
// floats after the one before. Tokens take turns within a panel of filters, which stays in the cache.
#pragma once

#include <cmath>
#include <type_traits>

namespace {

// The characters of all tokens as vectors, each token's followed by a vector of slack: windows may be read past their
// end, up to a whole vector.
class CharVectors {
 public:
  CharVectors(const CharCnnPlan& plan, float* data) : plan_(plan), data_(data) {}

  static int64_t floats(const CharCnnPlan& plan) {
    return plan.places[plan.call.tokens] * plan.call.dim + (plan.call.tokens + 1) * Vec::width;
  }
  int64_t count(int64_t token) const { return plan_.places[token + 1] - plan_.places[token]; }
  float* of(int64_t token) const { return data_ + plan_.places[token] * plan_.call.dim + token * Vec::width; }
  int64_t windows(const CharBank& bank) const { return plan_.call.characters - bank.width + 1; }
  // Windows that see more than padding come first.
  int64_t real_windows(int64_t token, const CharBank& bank) const {
    return smaller(plan_.lengths[token], windows(bank));
  }

  void gather(int64_t token) const {
    const CharCnnCall& call = plan_.call;
    float* to = of(token);
    for (int64_t k = 0; k < count(token); ++k, to += call.dim)
      std::memcpy(to, call.table + call.ids[token * call.characters + k] * call.dim,
                  sizeof(float) * static_cast<size_t>(call.dim));
    std::memset(to, 0, sizeof(float) * Vec::width);
  }

 private:
  const CharCnnPlan& plan_;
  float* data_;
};

// sum [R] = windows a, which begin `step` floats apart, x b [k, panel_width]. Step 0: known at run time.
template <int R, int Step>
inline __attribute__((always_inline)) void window_sums(const float* a, int64_t step, const float* b, int64_t k,
                                                       Vec::F (&sum)[R][2]) {
  const int64_t apart = Step ? Step : step;
  ELMO_FAST_UNROLL
  for (int r = 0; r < R; ++r) sum[r][0] = sum[r][1] = Vec::set1(0.0f);
  for (; k > 0; --k, ++a, b += panel_width) {
    const Vec::F b0 = Vec::load(b);
    const Vec::F b1 = Vec::load(b + Vec::width);
    ELMO_FAST_UNROLL
    for (int r = 0; r < R; ++r) {
      const Vec::F ar = Vec::set1(a[r * apart]);
      sum[r][0] = Vec::fma(ar, b0, sum[r][0]);
      sum[r][1] = Vec::fma(ar, b1, sum[r][1]);
    }
  }
}

// c [R, panel_width] += the sums.
template <int R, int Step>
void window_tile(const float* a, int64_t step, const float* b, int64_t k, float* c) {
  Vec::F sum[R][2];
  window_sums<R, Step>(a, step, b, k, sum);
  ELMO_FAST_UNROLL
  for (int r = 0; r < R; ++r) {
    float* row = c + r * panel_width;
    Vec::store(row, Vec::add(Vec::load(row), sum[r][0]));
    Vec::store(row + Vec::width, Vec::add(Vec::load(row + Vec::width), sum[r][1]));
  }
}

// The largest of several vectors of products. NaN stays NaN.
struct Maximum {
  Vec::F best = Vec::set1(-INFINITY), poison = Vec::set1(0.0f);

  void add(Vec::F x, float /*at*/, float /*times*/) {
    const Vec::F zero = Vec::set1(0.0f);
    best = Vec::at_least(best, x);
    poison = Vec::add(poison, Vec::at_most(zero, Vec::at_least(zero, x)));
  }
  Vec::F value() const { return Vec::add(best, poison); }
};

// The sums go no further than the maximum of each column.
template <int R, int Step>
void window_maximum(const float* a, int64_t step, const float* b, int64_t k, Maximum largest[2]) {
  Vec::F sum[R][2];
  window_sums<R, Step>(a, step, b, k, sum);
  ELMO_FAST_UNROLL
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < 2; ++v) largest[v].add(sum[r][v], 0.0f, 1.0f);
}

class WindowProduct {
 public:
  explicit WindowProduct(int64_t dim) : dim_(dim) {
    if (dim == 16) Fill<Vec::rows, 16>::fill(*this);
    else Fill<Vec::rows, 0>::fill(*this);
  }

  // c [rows, panel_width] = products of `rows` windows, at most Vec::rows, with b [k, panel_width].
  void multiply(const float* windows, int64_t rows, const float* b, int64_t k, float* c) const {
    std::memset(c, 0, sizeof(float) * static_cast<size_t>(rows * panel_width));
    for (int64_t k0 = 0; k0 < k; k0 += unit_k)
      table_[rows](windows + k0, dim_, b + k0 * panel_width, smaller(unit_k, k - k0), c);
  }

  // The same products, of at most unit_k terms, straight into the maximum.
  void largest(const float* windows, int64_t rows, const float* b, int64_t k, Maximum found[2]) const {
    maxima_[rows](windows, dim_, b, k, found);
  }

 private:
  using Tile = void (*)(const float*, int64_t, const float*, int64_t, float*);
  using MaximumTile = void (*)(const float*, int64_t, const float*, int64_t, Maximum*);

  template <int R, int Step>
  struct Fill {
    static void fill(WindowProduct& to) {
      Fill<R - 1, Step>::fill(to);
      to.table_[R] = window_tile<R, Step>;
      to.maxima_[R] = window_maximum<R, Step>;
    }
  };
  template <int Step>
  struct Fill<0, Step> {
    static void fill(WindowProduct& to) {
      to.table_[0] = nullptr;
      to.maxima_[0] = nullptr;
    }
  };

  const int64_t dim_;
  Tile table_[Vec::rows + 1];
  MaximumTile maxima_[Vec::rows + 1];
};

// The largest of several vectors of products, which one was first, and how many there are. NaN stays NaN.
struct Largest {
  Vec::F best = Vec::set1(-INFINITY), place = Vec::set1(0.0f), count = Vec::set1(0.0f), poison = Vec::set1(0.0f);

  void add(Vec::F x, float at, float times) {
    const Vec::F zero = Vec::set1(0.0f), more = Vec::set1(times);
    place = Vec::if_less(best, x, Vec::set1(at), place);
    count = Vec::if_less(best, x, more, Vec::if_less(x, best, count, Vec::add(count, more)));
    best = Vec::at_least(best, x);
    poison = Vec::add(poison, Vec::at_most(zero, Vec::at_least(zero, x)));
  }
  Vec::F value() const { return Vec::add(best, poison); }
};

// Offsets in floats into the scratch of a forward: filters [panels, width * dim, panel_width] of each bank, their
// products with a window of padding [panels, panel_width], and the characters.
struct CharCnnLayout {
  int64_t padding, characters, size;
  explicit CharCnnLayout(const CharCnnPlan& plan) {
    int64_t panels = 0, floats = 0;
    for (int64_t b = 0; b < plan.call.bank_count; ++b) {
      const CharBank& bank = plan.call.banks[b];
      const int64_t count = divided_up(bank.filters, panel_width);
      panels += count;
      floats += count * bank.width * plan.call.dim * panel_width;
    }
    padding = floats;
    characters = padding + panels * panel_width;
    size = characters + CharVectors::floats(plan);
  }
};

// Picks: Largest where the caller wants to know which windows won, else Maximum.
template <class Picks>
class CharCnnForward {
 public:
  CharCnnForward(const CharCnnPlan& plan, Team team)
      : plan_(plan), call_(plan.call), team_(team), layout_(plan), product_(call_.dim),
        characters_(plan, plan.scratch + layout_.characters) {}

  void run() const {
    const Share mine(call_.tokens, team_.rank, team_.size);
    for (int64_t token = mine.begin; token < mine.end; ++token) characters_.gather(token);
    pack_share();
    barrier_wait(*team_.barrier);
    for (int64_t token = mine.begin; token < mine.end; token += tokens_at_once)
      pool_tokens(token, smaller(token + tokens_at_once, mine.end));
  }

 private:
  // Every team_.size-th panel.
  void pack_share() const {
    int64_t turn = 0;
    float* to = plan_.scratch;
    float* padding = plan_.scratch + layout_.padding;
    float window[unit_k];
    for (int64_t b = 0; b < call_.bank_count; ++b) {
      const CharBank& bank = call_.banks[b];
      const int64_t k = bank.width * call_.dim;
      for (int64_t panel = 0; panel < divided_up(bank.filters, panel_width); ++panel, to += k * panel_width) {
        if (turn++ % team_.size == team_.rank) {
          Fp32Product::pack_right(plain_panel(bank.weight, bank.filters, panel), 0, k, reinterpret_cast<char*>(to));
          padding_product(window, to, k, padding);
        }
        padding += panel_width;
      }
    }
  }

  // The product of one panel with a window of padding alone, unit by unit as WindowProduct has it.
  void padding_product(float* window, const float* panel, int64_t k, float* to) const {
    float sums[panel_width];
    std::memset(to, 0, panel_width * sizeof(float));
    for (int64_t k0 = 0; k0 < k; k0 += unit_k) {
      const int64_t count = smaller(unit_k, k - k0);
      for (int64_t j = 0; j < count; ++j)
        window[j] = call_.table[call_.padding * call_.dim + (k0 + j) % call_.dim];
      product_.multiply(window, 1, panel + k0 * panel_width, count, sums);
      for (int64_t j = 0; j < panel_width; ++j) to[j] += sums[j];
    }
  }

  void pool_tokens(int64_t begin, int64_t end) const {
    const float* filters = plan_.scratch;
    const float* padding = plan_.scratch + layout_.padding;
    for (int64_t b = 0; b < call_.bank_count; ++b) {
      const CharBank& bank = call_.banks[b];
      for (int64_t panel = 0; panel < divided_up(bank.filters, panel_width); ++panel) {
        for (int64_t token = begin; token < end; ++token) pool(token, bank, panel, filters, padding);
        filters += bank.width * call_.dim * panel_width;
        padding += panel_width;
      }
    }
  }

  void pool(int64_t token, const CharBank& bank, int64_t panel, const float* filters, const float* padding) const {
    Picks largest[2];
    const int64_t real = characters_.real_windows(token, bank), all = characters_.windows(bank);
    const Blocks blocks(real, Vec::rows, true);
    for (int64_t b = 0; b < blocks.count; ++b)
      pool_block(characters_.of(token), blocks.begin(b), blocks.size(b), filters, bank.width * call_.dim, largest);
    for (int v = 0; v < 2 && real < all; ++v)
      largest[v].add(Vec::load(padding + v * Vec::width), static_cast<float>(real), static_cast<float>(all - real));
    for (int v = 0; v < 2; ++v) {
      const int64_t column = panel * panel_width + v * Vec::width;
      if (column < bank.filters)
        store(largest[v], token * call_.filters + bank.first + column, smaller(Vec::width, bank.filters - column));
    }
  }

  // `rows` windows of a token from the `first` on.
  void pool_block(const float* token, int64_t first, int64_t rows, const float* filters, int64_t k,
                  Picks largest[2]) const {
    if constexpr (!picks) {
      if (k <= unit_k) return product_.largest(token + first * call_.dim, rows, filters, k, largest);
    }
    float products[Vec::rows * panel_width];
    product_.multiply(token + first * call_.dim, rows, filters, k, products);
    for (int64_t r = 0; r < rows; ++r)
      for (int v = 0; v < 2; ++v)
        largest[v].add(Vec::load(products + r * panel_width + v * Vec::width), static_cast<float>(first + r), 1.0f);
  }

  void store(const Picks& largest, int64_t at, int64_t count) const {
    float values[Vec::width];
    Vec::store(values, largest.value());
    std::memcpy(plan_.values + at, values, sizeof(float) * static_cast<size_t>(count));
    if constexpr (picks) store_picks(largest, at, count);
  }

  void store_picks(const Picks& largest, int64_t at, int64_t count) const {
    float places[Vec::width], counts[Vec::width];
    Vec::store(places, largest.place);
    Vec::store(counts, largest.count);
    for (int64_t k = 0; k < count; ++k)
      plan_.picks[at + k] = static_cast<uint32_t>(static_cast<int32_t>(places[k])) |
                            static_cast<uint32_t>(static_cast<int32_t>(counts[k])) << 16;
  }

  static constexpr int64_t tokens_at_once = 64;
  static constexpr bool picks = std::is_same<Picks, Largest>::value;

  const CharCnnPlan& plan_;
  const CharCnnCall& call_;
  const Team team_;
  const CharCnnLayout layout_;
  const WindowProduct product_;
  const CharVectors characters_;
};

inline size_t char_cnn_forward_floats(const CharCnnPlan& plan) { return static_cast<size_t>(CharCnnLayout(plan).size); }

inline void char_cnn_run_forward(const CharCnnPlan& plan, Team team) {
  if (plan.picks) CharCnnForward<Largest>(plan, team).run();
  else CharCnnForward<Maximum>(plan, team).run();
}

}  // namespace
