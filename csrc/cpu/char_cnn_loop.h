// Products of filters with windows, and their maxima. Include after gemm_tile.h, packed_product.h and char_cnn_plan.h.
//
// A window is a run of width * dim floats among its token's character vectors, so a row of the left operand begins dim
// floats after the one before. Tokens take turns within a panel of filters, which stays in the cache.
#pragma once

#include <cmath>

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

// c [R, panel_width] += windows a, which begin `step` floats apart, x b [k, panel_width]. Step 0: known at run time.
template <int R, int Step>
void window_tile(const float* a, int64_t step, const float* b, int64_t k, float* c) {
  const int64_t apart = Step ? Step : step;
  Vec::F sum[R][2];
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
  ELMO_FAST_UNROLL
  for (int r = 0; r < R; ++r) {
    float* row = c + r * panel_width;
    Vec::store(row, Vec::add(Vec::load(row), sum[r][0]));
    Vec::store(row + Vec::width, Vec::add(Vec::load(row + Vec::width), sum[r][1]));
  }
}

class WindowProduct {
 public:
  explicit WindowProduct(int64_t dim) : dim_(dim) {
    if (dim == 16) Fill<Vec::rows, 16>::fill(table_);
    else Fill<Vec::rows, 0>::fill(table_);
  }

  // c [rows, panel_width] = products of `rows` windows, at most Vec::rows, with b [k, panel_width].
  void multiply(const float* windows, int64_t rows, const float* b, int64_t k, float* c) const {
    std::memset(c, 0, sizeof(float) * static_cast<size_t>(rows * panel_width));
    for (int64_t k0 = 0; k0 < k; k0 += unit_k)
      table_[rows](windows + k0, dim_, b + k0 * panel_width, smaller(unit_k, k - k0), c);
  }

 private:
  using Tile = void (*)(const float*, int64_t, const float*, int64_t, float*);

  template <int R, int Step>
  struct Fill {
    static void fill(Tile* table) {
      Fill<R - 1, Step>::fill(table);
      table[R] = window_tile<R, Step>;
    }
  };
  template <int Step>
  struct Fill<0, Step> {
    static void fill(Tile* table) { table[0] = nullptr; }
  };

  const int64_t dim_;
  Tile table_[Vec::rows + 1];
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

class CharCnnForward {
 public:
  CharCnnForward(const CharCnnPlan& plan, Team team)
      : plan_(plan), call_(plan.call), team_(team), layout_(plan), product_(call_.dim),
        characters_(plan, plan.scratch + layout_.characters) {}

  void run() const {
    const Share mine(call_.tokens, team_.rank, team_.size);
    for (int64_t token = mine.begin; token < mine.end; ++token) characters_.gather(token);
    if (team_.rank == 0) pack_all();
    barrier_wait(*team_.barrier);
    for (int64_t token = mine.begin; token < mine.end; token += tokens_at_once)
      pool_tokens(token, smaller(token + tokens_at_once, mine.end));
  }

 private:
  void pack_all() const {
    float* to = plan_.scratch;
    float* padding = plan_.scratch + layout_.padding;
    float window[unit_k];
    for (int64_t b = 0; b < call_.bank_count; ++b) {
      const CharBank& bank = call_.banks[b];
      const int64_t k = bank.width * call_.dim;
      for (int64_t panel = 0; panel < divided_up(bank.filters, panel_width); ++panel, to += k * panel_width) {
        Fp32Product::pack_right(plain_panel(bank.weight, bank.filters, panel), 0, k, reinterpret_cast<char*>(to));
        padding_product(window, to, k, padding);
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
    Largest largest[2];
    float products[Vec::rows * panel_width];
    const int64_t real = characters_.real_windows(token, bank), all = characters_.windows(bank);
    const Blocks blocks(real, Vec::rows, true);
    for (int64_t b = 0; b < blocks.count; ++b) {
      const int64_t first = blocks.begin(b), rows = blocks.size(b);
      product_.multiply(characters_.of(token) + first * call_.dim, rows, filters, bank.width * call_.dim, products);
      for (int64_t r = 0; r < rows; ++r)
        for (int v = 0; v < 2; ++v)
          largest[v].add(Vec::load(products + r * panel_width + v * Vec::width), static_cast<float>(first + r), 1.0f);
    }
    for (int v = 0; v < 2 && real < all; ++v)
      largest[v].add(Vec::load(padding + v * Vec::width), static_cast<float>(real), static_cast<float>(all - real));
    for (int v = 0; v < 2; ++v) {
      const int64_t column = panel * panel_width + v * Vec::width;
      if (column < bank.filters)
        store(largest[v], token * call_.filters + bank.first + column, smaller(Vec::width, bank.filters - column));
    }
  }

  void store(const Largest& largest, int64_t at, int64_t count) const {
    float values[Vec::width], places[Vec::width], counts[Vec::width];
    Vec::store(values, Vec::add(largest.best, largest.poison));
    Vec::store(places, largest.place);
    Vec::store(counts, largest.count);
    std::memcpy(plan_.values + at, values, sizeof(float) * static_cast<size_t>(count));
    for (int64_t k = 0; k < count; ++k)
      plan_.picks[at + k] = static_cast<uint32_t>(static_cast<int32_t>(places[k])) |
                            static_cast<uint32_t>(static_cast<int32_t>(counts[k])) << 16;
  }

  static constexpr int64_t tokens_at_once = 64;

  const CharCnnPlan& plan_;
  const CharCnnCall& call_;
  const Team team_;
  const CharCnnLayout layout_;
  const WindowProduct product_;
  const CharVectors characters_;
};

inline size_t char_cnn_forward_floats(const CharCnnPlan& plan) { return static_cast<size_t>(CharCnnLayout(plan).size); }

inline void char_cnn_run_forward(const CharCnnPlan& plan, Team team) { CharCnnForward(plan, team).run(); }

}  // namespace
