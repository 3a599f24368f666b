// The recurrence of the gradients of one direction, last step first, run by every thread of its team.
//
// Per step: dh of this thread's panels of P and through the clip, barrier; dm = dh W_P^T and the gates of this thread's
// panels of D, barrier; dh before the step = dz W_h^T of this thread's panels of P. A thread reads `dh` and `dc` only
// where it wrote them. What needs no recurrence follows in weight_gradients.h.
#pragma once

#include "../gemm/fp32.h"
#include "layout.h"

namespace elmo_fast::cpu {

template <class Vec>
class BackwardLoop {
  using F = typename Vec::F;
  static constexpr int panel_width = 2 * Vec::width;
  static constexpr int64_t gate_width = 2 * panel_width;

 public:
  BackwardLoop(const LstmPlan& plan, const LstmBackward& direction, Team team)
      : plan_(plan), d_(direction), team_(team), shape_(plan.shape), weights_(plan.shape), scratch_(plan, team.size),
        projected_(shape_.dim != shape_.projection), tiles_(divided_up(shape_.dim, Vec::width)),
        p_panels_(panels_of<Vec>(shape_.projection)), my_p_(p_panels_, team.rank, team.size),
        my_cells_(panels_of<Vec>(shape_.dim), team.rank, team.size),
        above_cell_clip_(Vec::set1(direction.above_cell_clip)), above_proj_clip_(Vec::set1(direction.above_proj_clip)),
        saved_(shape_, plan.packed_rows, direction.forward.saved) {}

  void run() {
    load_states();
    for (int64_t t = plan_.steps - 1; t >= 0; --t) step(t);
    store_states();
  }

 private:
  void meet() const { barrier_wait(*team_.barrier); }
  float* floats(int64_t offset) const { return reinterpret_cast<float*>(d_.forward.scratch) + offset; }
  const float* packed(int64_t offset) const { return reinterpret_cast<const float*>(d_.forward.packed) + offset; }
  float* result() const { return floats(scratch_.result + team_.rank * scratch_.result_floats); }
  float* dh(int64_t panel) const { return floats(scratch_.dh) + panel * plan_.slots * panel_width; }
  float* dc(int64_t tile) const { return floats(scratch_.dc) + tile * plan_.slots * Vec::width; }
  float* first_c(int64_t tile) const { return floats(scratch_.c) + tile * plan_.slots * Vec::width; }
  float* paneled(int64_t offset, int64_t panel, int64_t row) const {
    return floats(offset) + (panel * plan_.packed_rows + row) * panel_width;
  }
  bool starts_sequence(int64_t row) const { return plan_.sequence_start && plan_.sequence_start[row]; }
  Partition my_tiles() const { return tiles_of(my_cells_.begin, my_cells_.end); }
  Partition tiles_of(int64_t begin, int64_t end) const {
    Partition tiles(0, 0, 1);
    tiles.begin = 2 * begin;
    tiles.end = smaller(2 * end, tiles_);
    return tiles;
  }
  int64_t columns_of(int64_t panel) const { return smaller(panel_width, shape_.projection - panel * panel_width); }
  int64_t cells_of(int64_t tile) const { return smaller(Vec::width, shape_.dim - tile * Vec::width); }

  static void padded_copy(float* to, int64_t width, const float* from, int64_t count) {
    std::memcpy(to, from, sizeof(float) * static_cast<size_t>(count));
    std::memset(to + count, 0, sizeof(float) * static_cast<size_t>(width - count));
  }

  void load_states() const {
    const int64_t p = 2 * shape_.projection, dim = 2 * shape_.dim;
    for (int64_t panel = my_p_.begin; panel < my_p_.end; ++panel) {
      std::memset(floats(scratch_.initial_dh) + panel * panel_width, 0, panel_width * sizeof(float));
      for (int64_t slot = 0; slot < plan_.slots; ++slot)
        padded_copy(dh(panel) + slot * panel_width, panel_width, d_.grad_h + slot * p + panel * panel_width,
                    columns_of(panel));
    }
    for (int64_t tile = my_tiles().begin; tile < my_tiles().end; ++tile) {
      const int64_t cell = tile * Vec::width;
      std::memset(floats(scratch_.initial_dc) + cell, 0, Vec::width * sizeof(float));
      std::memset(floats(scratch_.initial_c) + cell, 0, Vec::width * sizeof(float));
      if (d_.forward.initial_c)
        padded_copy(floats(scratch_.initial_c) + cell, Vec::width, d_.forward.initial_c + cell, cells_of(tile));
      for (int64_t slot = 0; slot < plan_.slots; ++slot) {
        padded_copy(dc(tile) + slot * Vec::width, Vec::width, d_.grad_c + slot * dim + cell, cells_of(tile));
        padded_copy(first_c(tile) + slot * Vec::width, Vec::width, d_.forward.c + slot * dim + cell, cells_of(tile));
      }
    }
  }

  void store_states() const {
    const int64_t p = 2 * shape_.projection, dim = 2 * shape_.dim;
    for (int64_t panel = my_p_.begin; panel < my_p_.end; ++panel) {
      const size_t bytes = sizeof(float) * static_cast<size_t>(columns_of(panel));
      for (int64_t slot = 0; slot < plan_.slots; ++slot)
        std::memcpy(d_.grad_h + slot * p + panel * panel_width, dh(panel) + slot * panel_width, bytes);
      if (d_.grad_initial_h)
        std::memcpy(d_.grad_initial_h + panel * panel_width, floats(scratch_.initial_dh) + panel * panel_width, bytes);
    }
    for (int64_t tile = my_tiles().begin; tile < my_tiles().end; ++tile) {
      const int64_t cell = tile * Vec::width;
      const size_t bytes = sizeof(float) * static_cast<size_t>(cells_of(tile));
      for (int64_t slot = 0; slot < plan_.slots; ++slot)
        std::memcpy(d_.grad_c + slot * dim + cell, dc(tile) + slot * Vec::width, bytes);
      if (d_.grad_initial_c) std::memcpy(d_.grad_initial_c + cell, floats(scratch_.initial_dc) + cell, bytes);
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

  // dp = dh of the step's rows, from the output and from what follows, where the clip let h through.
  void through_projection_clip(int64_t t, int64_t panel) {
    const int64_t begin = plan_.row_begin[t], p = 2 * shape_.projection;
    for (int64_t slot = 0; slot < plan_.batch_sizes[t]; ++slot) {
      float* to = paneled(scratch_.dp, panel, begin + slot);
      padded_copy(to, panel_width, d_.grad_output + (begin + slot) * p + panel * panel_width, columns_of(panel));
      for (int v = 0; v < panel_width; v += Vec::width) {
        F g = Vec::add(Vec::load(to + v), Vec::load(dh(panel) + slot * panel_width + v));
        if (d_.clips_projection && projected_) {
          const float* raw = saved_.projected + (panel * plan_.packed_rows + begin + slot) * panel_width;
          g = through_clip(g, Vec::load(raw + v), above_proj_clip_);
        }
        Vec::store(to + v, g);
      }
    }
  }

  // dm = dp W_P^T of the step's rows in one panel of cells, and the gates and cells of its tiles.
  void cells_backward(int64_t t, int64_t panel) {
    const int64_t begin = plan_.row_begin[t], rows = plan_.batch_sizes[t];
    const float* dm = paneled(scratch_.dp, panel, begin);
    if (projected_) {
      const float* right = packed(weights_.projection) + panel * p_panels_ * panel_width * panel_width;
      std::memset(result(), 0, sizeof(float) * static_cast<size_t>(rows * panel_width));
      gemm_.multiply(paneled(scratch_.dp, 0, begin), plan_.packed_rows * panel_width, p_panels_, rows, right, result());
      dm = result();
    }
    const Partition tiles = tiles_of(panel, panel + 1);
    for (int64_t tile = tiles.begin; tile < tiles.end; ++tile)
      for (int64_t slot = 0; slot < rows; ++slot)
        cell_backward(t, tile, slot, dm + slot * panel_width + (tile - tiles.begin) * Vec::width);
  }

  const float* previous_c(int64_t t, int64_t tile, int64_t slot) const {
    if (starts_sequence(plan_.row_begin[t] + slot)) return floats(scratch_.initial_c) + tile * Vec::width;
    if (t == 0) return first_c(tile) + slot * Vec::width;
    return saved_.cells + (tile * plan_.packed_rows + plan_.row_begin[t - 1] + slot) * Vec::width;
  }

  void cell_backward(int64_t t, int64_t tile, int64_t slot, const float* grad_m) const {
    const int64_t row = plan_.row_begin[t] + slot;
    const float* gates = saved_.gates + (tile * plan_.packed_rows + row) * gate_width;
    const F one = Vec::set1(1.0f);
    const F i = Vec::load(gates), j = Vec::load(gates + Vec::width);
    const F f = Vec::load(gates + 2 * Vec::width), o = Vec::load(gates + 3 * Vec::width);
    const F before = Vec::load(previous_c(t, tile, slot)), dm = Vec::load(grad_m);
    const F c = Vec::load(saved_.cells + (tile * plan_.packed_rows + row) * Vec::width);
    const F squashed = ExactActivations<Vec>::tanh(c);
    float* carried = dc(tile) + slot * Vec::width;
    Vec::store(paneled(scratch_.m, tile / 2, row) + tile % 2 * Vec::width, Vec::mul(o, squashed));
    F grad = Vec::fma(Vec::mul(dm, o), Vec::fnma(squashed, squashed, one), Vec::load(carried));
    if (d_.clips_cells) grad = through_clip(grad, Vec::add(Vec::mul(f, before), Vec::mul(i, j)), above_cell_clip_);
    carry_cell(tile, carried, Vec::mul(grad, f), starts_sequence(row));
    float* dz = paneled(scratch_.dz, 2 * tile, row);
    Vec::store(dz, Vec::mul(Vec::mul(grad, j), Vec::mul(i, Vec::sub(one, i))));
    Vec::store(dz + Vec::width, Vec::mul(Vec::mul(grad, i), Vec::fnma(j, j, one)));
    dz = paneled(scratch_.dz, 2 * tile + 1, row);
    Vec::store(dz, Vec::mul(Vec::mul(grad, before), Vec::mul(f, Vec::sub(one, f))));
    Vec::store(dz + Vec::width, Vec::mul(Vec::mul(dm, squashed), Vec::mul(o, Vec::sub(one, o))));
  }

  // The gradient of the cell before the step goes to the slot's, or to the initial state that replaced it.
  void carry_cell(int64_t tile, float* carried, F grad, bool starts) const {
    Vec::store(carried, starts ? Vec::set1(0.0f) : grad);
    if (!starts) return;
    float* sum = floats(scratch_.initial_dc) + tile * Vec::width;
    Vec::store(sum, Vec::add(Vec::load(sum), grad));
  }

  // dh = dz W_h^T of the step's rows in one panel of P, for the step before.
  void previous_h(int64_t t, int64_t panel) {
    const int64_t rows = plan_.batch_sizes[t];
    float* to = dh(panel);
    std::memset(to, 0, sizeof(float) * static_cast<size_t>(rows * panel_width));
    gemm_.multiply(paneled(scratch_.dz, 0, plan_.row_begin[t]), plan_.packed_rows * panel_width, weights_.gate_panels,
                   rows, packed(weights_.recurrent) + panel * weights_.gates * panel_width, to);
    float* sum = floats(scratch_.initial_dh) + panel * panel_width;
    for (int64_t slot = 0; plan_.sequence_start && slot < rows; ++slot, to += panel_width)
      for (int v = 0; starts_sequence(plan_.row_begin[t] + slot) && v < panel_width; v += Vec::width) {
        Vec::store(sum + v, Vec::add(Vec::load(sum + v), Vec::load(to + v)));
        Vec::store(to + v, Vec::set1(0.0f));
      }
  }

  const LstmPlan& plan_;
  const LstmBackward& d_;
  const Team team_;
  const LstmShape shape_;
  const BackwardWeights<Vec> weights_;
  const BackwardScratch<Vec> scratch_;
  const bool projected_;
  const int64_t tiles_, p_panels_;
  const Partition my_p_, my_cells_;
  const F above_cell_clip_, above_proj_clip_;
  const Saved<Vec> saved_;
  const PaneledGemm<Vec> gemm_{};
};

}  // namespace elmo_fast::cpu
