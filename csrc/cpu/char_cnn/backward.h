// Gradients of the char-CNN: a maximum passes its gradient only to the window that has it, so that no other window is
// read.
#pragma once

#include "forward.h"

namespace elmo_fast::cpu {

// Offsets in floats into the scratch of a backward: filters [filters, row], bank after bank, where a row has the
// weights of a window, padded to whole vectors; then characters, and their gradients.
template <class Vec>
struct CharGradientLayout {
  int64_t characters, gradients, size;
  static int64_t row(const CharCnnPlan& plan, const CharBank& bank) {
    return divided_up(bank.width * plan.dim, Vec::width) * Vec::width;
  }
  explicit CharGradientLayout(const CharCnnPlan& plan) {
    int64_t floats = 0;
    for (int64_t b = 0; b < plan.bank_count; ++b) floats += plan.banks[b].filters * row(plan, plan.banks[b]);
    characters = divided_up(floats, 16) * 16;
    gradients = characters + CharVectors<Vec>::floats(plan);
    size = gradients + CharVectors<Vec>::floats(plan);
  }
};

template <class Vec>
class CharCnnGradients {
  using F = typename Vec::F;
  static constexpr int vectors_at_once = 8;

 public:
  static constexpr int stages = 3;

  CharCnnGradients(const CharCnnPlan& plan, int part)
      : plan_(plan), part_(part), layout_(plan), characters_(plan, plan.scratch + layout_.characters),
        gradients_(plan, plan.scratch + layout_.gradients) {}

  void run(int stage) const {
    if (stage == 0) prepare();
    else if (stage == 1) differentiate();
    else if (part_ == 0 && plan_.grad_table) add_to_table();
  }

 private:
  Partition my_tokens() const { return Partition(plan_.tokens, part_, plan_.threads); }

  void prepare() const {
    const Partition mine = my_tokens();
    for (int64_t token = mine.begin; token < mine.end; ++token) characters_.gather(token);
    each_bank([this](const CharBank& bank, float* rows) { transpose(bank, rows); });
  }

  void differentiate() const {
    for (int64_t b = 0; b < plan_.bank_count; ++b)
      if (plan_.banks[b].grad_weight) weights(plan_.banks[b]);
    const Partition mine = my_tokens();
    for (int64_t token = mine.begin; plan_.grad_table && token < mine.end; ++token) character_gradients(token);
  }

  template <class Body>
  void each_bank(Body body) const {
    float* rows = plan_.scratch;
    for (int64_t b = 0; b < plan_.bank_count; ++b) {
      body(plan_.banks[b], rows);
      rows += plan_.banks[b].filters * CharGradientLayout<Vec>::row(plan_, plan_.banks[b]);
    }
  }

  int64_t row(const CharBank& bank) const { return CharGradientLayout<Vec>::row(plan_, bank); }
  Partition my_filters(const CharBank& bank) const { return Partition(bank.filters, part_, plan_.threads); }

  void transpose(const CharBank& bank, float* rows) const {
    const int64_t k = bank.width * plan_.dim;
    const Partition mine = my_filters(bank);
    for (int64_t filter = mine.begin; filter < mine.end; ++filter) {
      float* to = rows + filter * row(bank);
      for (int64_t j = 0; j < row(bank); ++j) to[j] = j < k ? bank.weight[j * bank.filters + filter] : 0.0f;
    }
  }

  // Calls body(window, gradient) for the window that a maximum's gradient goes to.
  template <class Body>
  void picked_window(int64_t token, const CharBank& bank, int64_t filter, Body body) const {
    const int64_t at = token * plan_.filters + bank.first + filter;
    if (plan_.grad_values[at] != 0.0f) body(int64_t{plan_.picks[at]}, plan_.grad_values[at]);
  }

  void weights(const CharBank& bank) const {
    const Partition mine = my_filters(bank);
    for (int64_t filter = mine.begin; filter < mine.end; ++filter)
      for (int64_t k = 0; k < row(bank); k += vectors_at_once * Vec::width) weight_vectors(bank, filter, k);
  }

  // Up to N vectors of floats from k on.
  template <int N = vectors_at_once>
  void weight_vectors(const CharBank& bank, int64_t filter, int64_t k) const {
    if constexpr (N > 1) {
      if (row(bank) - k < N * Vec::width) return weight_vectors<N - 1>(bank, filter, k);
    }
    weight_sum<N>(bank, filter, k);
  }

  // Floats [k, k + N vectors) of one filter's gradient: windows of all tokens times their gradients.
  template <int N>
  void weight_sum(const CharBank& bank, int64_t filter, int64_t k) const {
    F sum[N];
    ELMO_FAST_UNROLL
    for (int v = 0; v < N; ++v) sum[v] = Vec::set1(0.0f);
    for (int64_t token = 0; token < plan_.tokens; ++token)
      picked_window(token, bank, filter, [&](int64_t window, float grad) {
        const float* x = characters_.of(token) + window * plan_.dim + k;
        const F g = Vec::set1(grad);
        ELMO_FAST_UNROLL
        for (int v = 0; v < N; ++v) sum[v] = Vec::fma(g, Vec::load(x + v * Vec::width), sum[v]);
      });
    float found[N * Vec::width];
    ELMO_FAST_UNROLL
    for (int v = 0; v < N; ++v) Vec::store(found + v * Vec::width, sum[v]);
    const int64_t count = smaller(N * Vec::width, bank.width * plan_.dim - k);
    for (int64_t j = 0; j < count; ++j) bank.grad_weight[(k + j) * bank.filters + filter] = found[j];
  }

  void character_gradients(int64_t token) const {
    float* to = gradients_.of(token);
    clear_floats(to, gradients_.count(token) * plan_.dim + Vec::width);
    each_bank([&](const CharBank& bank, const float* rows) {
      for (int64_t filter = 0; filter < bank.filters; ++filter) {
        const float* filter_row = rows + filter * row(bank);
        picked_window(token, bank, filter, [&](int64_t window, float grad) {
          add_row(to + window * plan_.dim, filter_row, row(bank), Vec::set1(grad));
        });
      }
    });
  }

  static void add_row(float* to, const float* from, int64_t count, F factor) {
    for (int64_t k = 0; k < count; k += Vec::width)
      Vec::store(to + k, Vec::fma(factor, Vec::load(from + k), Vec::load(to + k)));
  }

  void add_to_table() const {
    clear_floats(plan_.grad_table, plan_.table_rows * plan_.dim);
    for (int64_t token = 0; token < plan_.tokens; ++token) {
      const float* from = gradients_.of(token);
      for (int64_t k = 0; k < gradients_.count(token); ++k, from += plan_.dim) {
        float* to = plan_.grad_table + plan_.ids[token * plan_.characters + k] * plan_.dim;
        for (int64_t j = 0; j < plan_.dim; ++j) to[j] += from[j];
      }
    }
  }

  const CharCnnPlan& plan_;
  const int part_;
  const CharGradientLayout<Vec> layout_;
  const CharVectors<Vec> characters_, gradients_;
};

template <class Pass>
void run_stage(const CharCnnPlan& plan, int stage, int part) {
  Pass(plan, part).run(stage);
}

template <class Vec>
constexpr CharCnnEngine char_cnn_engine() {
  using Picking = CharCnnForward<Vec, FirstMaximum<Vec>>;
  using Forward = CharCnnForward<Vec, Maximum<Vec>>;
  using Backward = CharCnnGradients<Vec>;
  return {{Forward::stages, [](const CharCnnPlan& plan) { return CharCnnLayout<Vec>(plan).size; },
           [](const CharCnnPlan& plan, int stage, int part) {
             if (plan.picks) run_stage<Picking>(plan, stage, part);
             else run_stage<Forward>(plan, stage, part);
           }},
          {Backward::stages, [](const CharCnnPlan& plan) { return CharGradientLayout<Vec>(plan).size; },
           run_stage<Backward>}};
}

}  // namespace elmo_fast::cpu
