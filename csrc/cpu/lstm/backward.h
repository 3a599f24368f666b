// The recurrence of the gradients of one direction, last step first, run by every thread of its team.
//
// Per step: dh of this thread's panels of P, through the clip, barrier; dm = dh W_P^T and the gates of this thread's
// panels of D, barrier; dh before the step = dz W_h^T of this thread's panels of P. A thread reads only the `dh` and
// `dc` that it wrote. Gradients outside of the recurrence follow in weight_gradients.h.
#pragma once

#include <math.h>

#include "../gemm/fp32.h"
#include "layout.h"

namespace elmo_fast::cpu {

// The memory that the threads of a direction's gradients access.
template <class Vec>
class BackwardMemory {
 protected:
  using F = typename Vec::F;
  static constexpr int panel_width = 2 * Vec::width;
  static constexpr int64_t gate_width = 2 * panel_width;

  BackwardMemory(const LstmBackward& direction, Team team)
      : d_(direction), team_(team), shape_(d_.shape), scratch_(d_, team.size), saved_(shape_, d_.packed_rows, d_.saved),
        result_(floats(scratch_.result) + team.rank * scratch_.result_floats) {}

  float* floats(size_t offset) const { return reinterpret_cast<float*>(d_.scratch + offset); }
  const float* packed(int64_t offset) const { return reinterpret_cast<const float*>(d_.weights) + offset; }
  float* paneled(size_t offset, int64_t panel, int64_t row) const {
    return floats(offset) + (panel * d_.packed_rows + row) * panel_width;
  }
  bool starts_sequence(int64_t row) const { return d_.sequence_start && d_.sequence_start[row]; }

  // to [count, panel_width] = rows [row, row + count) of a paneled matrix [panels, S] x a panel of a right operand.
  void product_of_rows(size_t left, int64_t row, int64_t count, int64_t panels, const float* right, int64_t panel,
                       float* to) const {
    clear_floats(to, count * panel_width);
    gemm_of_rows_.multiply(paneled(left, 0, row), d_.packed_rows * panel_width, panels, count,
                           right + panel * panels * panel_width * panel_width, to);
  }

  const LstmBackward& d_;
  const Team team_;
  const LstmShape shape_;
  const bool projected_ = shape_.dim != shape_.projection;
  const BackwardScratch<Vec> scratch_;
  const BackwardWeights<Vec>& weights_ = scratch_.w;
  const Saved<Vec> saved_;
  float* const result_;  // this thread's
  const PaneledGemm<Vec> gemm_of_rows_{};
};

template <class Vec>
class BackwardLoop : BackwardMemory<Vec> {
  using Base = BackwardMemory<Vec>;
  using Base::d_, Base::team_, Base::shape_, Base::projected_, Base::scratch_, Base::weights_, Base::saved_;
  using Base::floats, Base::packed, Base::paneled, Base::starts_sequence;
  using Base::result_, Base::product_of_rows, Base::panel_width, Base::gate_width;
  using F = typename Vec::F;

 public:
  BackwardLoop(const LstmBackward& direction, Team team)
      : Base(direction, team), tiles_(weights_.gate_panels / 2), my_p_(weights_.p_panels, team.rank, team.size),
        my_cells_(weights_.d_panels, team.rank, team.size), my_tiles_(tiles_of(my_cells_.begin, my_cells_.end)),
        above_cell_clip_(Vec::set1(nextafterf(d_.cell_clip, INFINITY))),
        above_proj_clip_(Vec::set1(nextafterf(d_.proj_clip, INFINITY))) {}

  void run() {
    load_states();
    for (int64_t t = d_.steps - 1; t >= 0; --t) step(t);
    store_states();
  }

 private:
  void meet() const { team_.barrier->wait(); }
  float* dh(int64_t panel) const { return floats(scratch_.dh) + panel * d_.slots * panel_width; }
  float* dc(int64_t tile) const { return floats(scratch_.dc) + tile * d_.slots * Vec::width; }
  float* first_c(int64_t tile) const { return floats(scratch_.c) + tile * d_.slots * Vec::width; }
  // The tiles of panels [begin, end) of cells.
  Partition tiles_of(int64_t begin, int64_t end) const { return {2 * begin, smaller(2 * end, tiles_)}; }
  int64_t columns_of(int64_t panel) const { return smaller(panel_width, shape_.projection - panel * panel_width); }
  int64_t cells_of(int64_t tile) const { return smaller(Vec::width, shape_.dim - tile * Vec::width); }

  static void padded_copy(float* to, int64_t width, const float* from, int64_t count) {
    copy_floats(to, from, count);
    clear_floats(to + count, width - count);
  }

  // Loads a panel or tile [slots, width]: columns [first, first + count) of `rows` [slots, stride], then zeros.
  void load(float* to, int64_t width, const float* rows, int64_t stride, int64_t first, int64_t count) const {
    for (int64_t slot = 0; slot < d_.slots; ++slot)
      padded_copy(to + slot * width, width, rows + slot * stride + first, count);
  }

  void store(const float* from, int64_t width, float* rows, int64_t stride, int64_t first, int64_t count) const {
    for (int64_t slot = 0; slot < d_.slots; ++slot)
      copy_floats(rows + slot * stride + first, from + slot * width, count);
  }

  void load_states() const {
    for (int64_t panel = my_p_.begin; panel < my_p_.end; ++panel) {
      const int64_t first = panel * panel_width;
      clear_floats(floats(scratch_.initial_dh) + first, panel_width);
      load(dh(panel), panel_width, d_.grad_h, 2 * shape_.projection, first, columns_of(panel));
    }
    for (int64_t tile = my_tiles_.begin; tile < my_tiles_.end; ++tile) {
      const int64_t cell = tile * Vec::width, count = cells_of(tile);
      clear_floats(floats(scratch_.initial_dc) + cell, Vec::width);
      clear_floats(floats(scratch_.initial_c) + cell, Vec::width);
      if (d_.initial_c) copy_floats(floats(scratch_.initial_c) + cell, d_.initial_c + cell, count);
      load(dc(tile), Vec::width, d_.grad_c, 2 * shape_.dim, cell, count);
      load(first_c(tile), Vec::width, d_.c, 2 * shape_.dim, cell, count);
    }
  }

  void store_states() const {
    for (int64_t panel = my_p_.begin; panel < my_p_.end; ++panel) {
      const int64_t first = panel * panel_width, count = columns_of(panel);
      store(dh(panel), panel_width, d_.grad_h, 2 * shape_.projection, first, count);
      if (d_.grad_initial_h) copy_floats(d_.grad_initial_h + first, floats(scratch_.initial_dh) + first, count);
    }
    for (int64_t tile = my_tiles_.begin; tile < my_tiles_.end; ++tile) {
      const int64_t cell = tile * Vec::width, count = cells_of(tile);
      store(dc(tile), Vec::width, d_.grad_c, 2 * shape_.dim, cell, count);
      if (d_.grad_initial_c) copy_floats(d_.grad_initial_c + cell, floats(scratch_.initial_dc) + cell, count);
    }
  }

  void step(int64_t t) {
    for (int64_t panel = my_p_.begin; panel < my_p_.end; ++panel) through_projection_clip(t, panel);
    if (projected_) meet();
    for (int64_t panel = my_cells_.begin; panel < my_cells_.end; ++panel) cells_backward(t, panel);
    meet();
    for (int64_t panel = my_p_.begin; panel < my_p_.end; ++panel) previous_h(t, panel);
  }

  // g where |x| <= limit, else 0; a NaN in x gives 0.
  static F through_clip(F g, F x, F above_limit) { return Vec::if_less(Vec::abs(x), above_limit, g, Vec::set1(0.0f)); }

  // dp = dh of the step's rows, from the output and from the next step, where the clip passes gradients.
  void through_projection_clip(int64_t t, int64_t panel) {
    const int64_t begin = d_.row_begin[t], p = 2 * shape_.projection;
    for (int64_t slot = 0; slot < d_.batch_sizes[t]; ++slot) {
      float* to = paneled(scratch_.dp, panel, begin + slot);
      padded_copy(to, panel_width, d_.grad_output + (begin + slot) * p + panel * panel_width, columns_of(panel));
      for (int v = 0; v < panel_width; v += Vec::width) {
        F g = Vec::load(to + v) + Vec::load(dh(panel) + slot * panel_width + v);
        if (clips_projection_) {
          const float* raw = saved_.projected + (panel * d_.packed_rows + begin + slot) * panel_width;
          g = through_clip(g, Vec::load(raw + v), above_proj_clip_);
        }
        Vec::store(to + v, g);
      }
    }
  }

  // dm = dp W_P^T of the step's rows in a panel of cells, then the gates and cells of the panel's tiles.
  void cells_backward(int64_t t, int64_t panel) {
    const int64_t begin = d_.row_begin[t], rows = d_.batch_sizes[t];
    const float* dm = paneled(scratch_.dp, panel, begin);
    if (projected_) {
      product_of_rows(scratch_.dp, begin, rows, weights_.p_panels, packed(weights_.projection), panel, result_);
      dm = result_;
    }
    const Partition tiles = tiles_of(panel, panel + 1);
    for (int64_t tile = tiles.begin; tile < tiles.end; ++tile)
      for (int64_t slot = 0; slot < rows; ++slot)
        cell_backward(t, tile, slot, dm + slot * panel_width + (tile - tiles.begin) * Vec::width);
  }

  const float* previous_c(int64_t t, int64_t tile, int64_t slot) const {
    if (starts_sequence(d_.row_begin[t] + slot)) return floats(scratch_.initial_c) + tile * Vec::width;
    if (t == 0) return first_c(tile) + slot * Vec::width;
    return saved_.cells + (tile * d_.packed_rows + d_.row_begin[t - 1] + slot) * Vec::width;
  }

  void cell_backward(int64_t t, int64_t tile, int64_t slot, const float* grad_m) const {
    const int64_t row = d_.row_begin[t] + slot;
    const float* gates = saved_.gates + (tile * d_.packed_rows + row) * gate_width;
    const F one = Vec::set1(1.0f);
    const F i = Vec::load(gates), j = Vec::load(gates + Vec::width);
    const F f = Vec::load(gates + 2 * Vec::width), o = Vec::load(gates + 3 * Vec::width);
    const F before = Vec::load(previous_c(t, tile, slot)), dm = Vec::load(grad_m);
    const F c = Vec::load(saved_.cells + (tile * d_.packed_rows + row) * Vec::width);
    const F squashed = ExactActivations<Vec>::tanh(c);
    float* carried = dc(tile) + slot * Vec::width;
    Vec::store(paneled(scratch_.m, tile / 2, row) + tile % 2 * Vec::width, o * squashed);
    F grad = Vec::fma(dm * o, Vec::fnma(squashed, squashed, one), Vec::load(carried));
    if (clips_cells_) grad = through_clip(grad, f * before + i * j, above_cell_clip_);
    carry_cell(tile, carried, grad * f, starts_sequence(row));
    float* dz = paneled(scratch_.dz, 2 * tile, row);
    Vec::store(dz, grad * j * (i * (one - i)));
    Vec::store(dz + Vec::width, grad * i * Vec::fnma(j, j, one));
    dz = paneled(scratch_.dz, 2 * tile + 1, row);
    Vec::store(dz, grad * before * (f * (one - f)));
    Vec::store(dz + Vec::width, dm * squashed * (o * (one - o)));
  }

  // Passes the gradient of c before the step to the slot's c, or to the initial state that replaced it.
  void carry_cell(int64_t tile, float* carried, F grad, bool starts) const {
    Vec::store(carried, starts ? Vec::set1(0.0f) : grad);
    if (!starts) return;
    float* sum = floats(scratch_.initial_dc) + tile * Vec::width;
    Vec::store(sum, Vec::load(sum) + grad);
  }

  // dh = dz W_h^T of the step's rows in a panel of P, for the previous step.
  void previous_h(int64_t t, int64_t panel) {
    const int64_t rows = d_.batch_sizes[t];
    float* to = dh(panel);
    product_of_rows(scratch_.dz, d_.row_begin[t], rows, weights_.gate_panels, packed(weights_.recurrent), panel, to);
    float* sum = floats(scratch_.initial_dh) + panel * panel_width;
    for (int64_t slot = 0; d_.sequence_start && slot < rows; ++slot, to += panel_width)
      for (int v = 0; starts_sequence(d_.row_begin[t] + slot) && v < panel_width; v += Vec::width) {
        Vec::store(sum + v, Vec::load(sum + v) + Vec::load(to + v));
        Vec::store(to + v, Vec::set1(0.0f));
      }
  }

  const int64_t tiles_;
  const Partition my_p_, my_cells_, my_tiles_;
  const bool clips_cells_ = d_.cell_clip < INFINITY, clips_projection_ = projected_ && d_.proj_clip < INFINITY;
  const F above_cell_clip_, above_proj_clip_;  // smallest float above the limit: x < it iff x <= limit
};

}  // namespace elmo_fast::cpu
