// The recurrence of the gradients of one direction, last step first, run by every thread of its team. Include after
// backward_layout.h, paneled_product.h and activations.h.
//
// Per step: dh of this thread's panels of P and through the clip, barrier; dm = dh W_P^T and the gates of this thread's
// panels of D, barrier; dh before the step = dz W_h^T of this thread's panels of P. A thread reads `dh` and `dc` only
// where it wrote them. What needs no recurrence follows in lstm_weight_gradients.h.
#pragma once

namespace {

class BackwardLoop {
 public:
  BackwardLoop(const LstmPlan& plan, const LstmBackward& direction, Team team)
      : plan_(plan), d_(direction), team_(team), shape_(plan.shape), weights_(plan.shape),
        scratch_(plan, team.size), projected_(shape_.dim != shape_.projection),
        tiles_(divided_up(shape_.dim, Vec::width)), p_panels_(panels_of(shape_.projection)),
        my_p_(p_panels_, team.rank, team.size), my_cells_(panels_of(shape_.dim), team.rank, team.size),
        above_cell_clip_(Vec::set1(direction.above_cell_clip)), above_proj_clip_(Vec::set1(direction.above_proj_clip)),
        kept_(direction.forward.kept) {}

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
  float* dh(int64_t panel) const { return floats(scratch_.dh) + panel * plan_.lanes * panel_width; }
  float* dc(int64_t tile) const { return floats(scratch_.dc) + tile * plan_.lanes * Vec::width; }
  float* first_c(int64_t tile) const { return floats(scratch_.c) + tile * plan_.lanes * Vec::width; }
  float* paneled(int64_t offset, int64_t panel, int64_t row) const {
    return floats(offset) + (panel * plan_.step_rows + row) * panel_width;
  }
  bool is_reset(int64_t row) const { return plan_.reset && plan_.reset[row]; }
  Share my_tiles() const { return tiles_of(my_cells_.begin, my_cells_.end); }
  Share tiles_of(int64_t begin, int64_t end) const {
    Share tiles(0, 0, 1);
    tiles.begin = 2 * begin;
    tiles.end = smaller(2 * end, tiles_);
    return tiles;
  }
  int64_t columns_of(int64_t panel) const {
    return smaller(panel_width, shape_.projection - panel * panel_width);
  }
  int64_t cells_of(int64_t tile) const { return smaller(Vec::width, shape_.dim - tile * Vec::width); }

  static void padded_copy(float* to, int64_t width, const float* from, int64_t count) {
    std::memcpy(to, from, sizeof(float) * static_cast<size_t>(count));
    std::memset(to + count, 0, sizeof(float) * static_cast<size_t>(width - count));
  }

  void load_states() const {
    const int64_t p = 2 * shape_.projection, dim = 2 * shape_.dim;
    for (int64_t panel = my_p_.begin; panel < my_p_.end; ++panel) {
      std::memset(floats(scratch_.reset_dh) + panel * panel_width, 0, panel_width * sizeof(float));
      for (int64_t lane = 0; lane < plan_.lanes; ++lane)
        padded_copy(dh(panel) + lane * panel_width, panel_width, d_.grad_h + lane * p + panel * panel_width,
                    columns_of(panel));
    }
    for (int64_t tile = my_tiles().begin; tile < my_tiles().end; ++tile) {
      const int64_t cell = tile * Vec::width;
      std::memset(floats(scratch_.reset_dc) + cell, 0, Vec::width * sizeof(float));
      std::memset(floats(scratch_.reset_c) + cell, 0, Vec::width * sizeof(float));
      if (d_.forward.reset_c)
        padded_copy(floats(scratch_.reset_c) + cell, Vec::width, d_.forward.reset_c + cell, cells_of(tile));
      for (int64_t lane = 0; lane < plan_.lanes; ++lane) {
        padded_copy(dc(tile) + lane * Vec::width, Vec::width, d_.grad_c + lane * dim + cell, cells_of(tile));
        padded_copy(first_c(tile) + lane * Vec::width, Vec::width, d_.forward.c + lane * dim + cell, cells_of(tile));
      }
    }
  }

  void store_states() const {
    const int64_t p = 2 * shape_.projection, dim = 2 * shape_.dim;
    for (int64_t panel = my_p_.begin; panel < my_p_.end; ++panel) {
      const size_t bytes = sizeof(float) * static_cast<size_t>(columns_of(panel));
      for (int64_t lane = 0; lane < plan_.lanes; ++lane)
        std::memcpy(d_.grad_h + lane * p + panel * panel_width, dh(panel) + lane * panel_width, bytes);
      if (d_.grad_reset_h)
        std::memcpy(d_.grad_reset_h + panel * panel_width, floats(scratch_.reset_dh) + panel * panel_width, bytes);
    }
    for (int64_t tile = my_tiles().begin; tile < my_tiles().end; ++tile) {
      const int64_t cell = tile * Vec::width;
      const size_t bytes = sizeof(float) * static_cast<size_t>(cells_of(tile));
      for (int64_t lane = 0; lane < plan_.lanes; ++lane)
        std::memcpy(d_.grad_c + lane * dim + cell, dc(tile) + lane * Vec::width, bytes);
      if (d_.grad_reset_c) std::memcpy(d_.grad_reset_c + cell, floats(scratch_.reset_dc) + cell, bytes);
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
  static Vec::F through_clip(Vec::F g, Vec::F x, Vec::F above_limit) {
    return Vec::if_less(Vec::abs(x), above_limit, g, Vec::set1(0.0f));
  }

  // dp = dh of the step's rows, from the output and from what follows, where the clip let h through.
  void through_projection_clip(int64_t t, int64_t panel) {
    const int64_t begin = plan_.begin[t], p = 2 * shape_.projection;
    for (int64_t lane = 0; lane < plan_.live[t]; ++lane) {
      float* to = paneled(scratch_.dp, panel, begin + lane);
      padded_copy(to, panel_width, d_.grad_output + (begin + lane) * p + panel * panel_width, columns_of(panel));
      for (int v = 0; v < panel_width; v += Vec::width) {
        Vec::F g = Vec::add(Vec::load(to + v), Vec::load(dh(panel) + lane * panel_width + v));
        if (d_.clips_projection && projected_) {
          const float* raw = kept_.projected + (panel * plan_.step_rows + begin + lane) * panel_width;
          g = through_clip(g, Vec::load(raw + v), above_proj_clip_);
        }
        Vec::store(to + v, g);
      }
    }
  }

  // dm = dp W_P^T of the step's rows in one panel of cells, and the gates and cells of its tiles.
  void cells_backward(int64_t t, int64_t panel) {
    const int64_t begin = plan_.begin[t], rows = plan_.live[t];
    const float* dm = paneled(scratch_.dp, panel, begin);
    if (projected_) {
      const float* right = packed(weights_.projection) + panel * p_panels_ * panel_width * panel_width;
      std::memset(result(), 0, sizeof(float) * static_cast<size_t>(rows * panel_width));
      product_.multiply(paneled(scratch_.dp, 0, begin), plan_.step_rows * panel_width, p_panels_, rows, right,
                        result());
      dm = result();
    }
    const Share tiles = tiles_of(panel, panel + 1);
    for (int64_t tile = tiles.begin; tile < tiles.end; ++tile)
      for (int64_t lane = 0; lane < rows; ++lane)
        cell_backward(t, tile, lane, dm + lane * panel_width + (tile - tiles.begin) * Vec::width);
  }

  const float* previous_c(int64_t t, int64_t tile, int64_t lane) const {
    if (is_reset(plan_.begin[t] + lane)) return floats(scratch_.reset_c) + tile * Vec::width;
    if (t == 0) return first_c(tile) + lane * Vec::width;
    return kept_.cells + (tile * plan_.step_rows + plan_.begin[t - 1] + lane) * Vec::width;
  }

  void cell_backward(int64_t t, int64_t tile, int64_t lane, const float* grad_m) const {
    const int64_t row = plan_.begin[t] + lane;
    const float* gates = kept_.gates + (tile * plan_.step_rows + row) * gate_width;
    const Vec::F one = Vec::set1(1.0f);
    const Vec::F i = Vec::load(gates), j = Vec::load(gates + Vec::width);
    const Vec::F f = Vec::load(gates + 2 * Vec::width), o = Vec::load(gates + 3 * Vec::width);
    const Vec::F before = Vec::load(previous_c(t, tile, lane)), dm = Vec::load(grad_m);
    const Vec::F squashed = tanh(Vec::load(kept_.cells + (tile * plan_.step_rows + row) * Vec::width));
    float* carried = dc(tile) + lane * Vec::width;
    Vec::store(paneled(scratch_.m, tile / 2, row) + tile % 2 * Vec::width, Vec::mul(o, squashed));
    Vec::F grad = Vec::fma(Vec::mul(dm, o), Vec::fnma(squashed, squashed, one), Vec::load(carried));
    if (d_.clips_cells) grad = through_clip(grad, Vec::add(Vec::mul(f, before), Vec::mul(i, j)), above_cell_clip_);
    carry_cell(tile, carried, Vec::mul(grad, f), is_reset(row));
    float* dz = paneled(scratch_.dz, 2 * tile, row);
    Vec::store(dz, Vec::mul(Vec::mul(grad, j), Vec::mul(i, Vec::sub(one, i))));
    Vec::store(dz + Vec::width, Vec::mul(Vec::mul(grad, i), Vec::fnma(j, j, one)));
    dz = paneled(scratch_.dz, 2 * tile + 1, row);
    Vec::store(dz, Vec::mul(Vec::mul(grad, before), Vec::mul(f, Vec::sub(one, f))));
    Vec::store(dz + Vec::width, Vec::mul(Vec::mul(dm, squashed), Vec::mul(o, Vec::sub(one, o))));
  }

  // The gradient of the cell before the step goes to the lane, or to the state that replaced its.
  void carry_cell(int64_t tile, float* carried, Vec::F grad, bool reset) const {
    Vec::store(carried, reset ? Vec::set1(0.0f) : grad);
    if (!reset) return;
    float* sum = floats(scratch_.reset_dc) + tile * Vec::width;
    Vec::store(sum, Vec::add(Vec::load(sum), grad));
  }

  // dh = dz W_h^T of the step's rows in one panel of P, for the step before.
  void previous_h(int64_t t, int64_t panel) {
    const int64_t rows = plan_.live[t];
    float* to = dh(panel);
    std::memset(to, 0, sizeof(float) * static_cast<size_t>(rows * panel_width));
    product_.multiply(paneled(scratch_.dz, 0, plan_.begin[t]), plan_.step_rows * panel_width, weights_.gate_panels,
                      rows, packed(weights_.recurrent) + panel * weights_.gates * panel_width, to);
    float* sum = floats(scratch_.reset_dh) + panel * panel_width;
    for (int64_t lane = 0; plan_.reset && lane < rows; ++lane, to += panel_width)
      for (int v = 0; is_reset(plan_.begin[t] + lane) && v < panel_width; v += Vec::width) {
        Vec::store(sum + v, Vec::add(Vec::load(sum + v), Vec::load(to + v)));
        Vec::store(to + v, Vec::set1(0.0f));
      }
  }

  const LstmPlan& plan_;
  const LstmBackward& d_;
  const Team team_;
  const LstmShape shape_;
  const BackwardWeights weights_;
  const BackwardScratch scratch_;
  const bool projected_;
  const int64_t tiles_, p_panels_;
  const Share my_p_, my_cells_;
  const Vec::F above_cell_clip_, above_proj_clip_;
  const LstmKept kept_;
  const PaneledProduct product_{};
};

}  // namespace
