// The gradients of one direction outside of the recurrence, as large products: W, B, W_P and the inputs.
//
// dW and dB are sums over packed rows of [x, h before, 1] times dz. Packed rows that read the same input row are first
// summed in place, so that the inputs' part of dW and the gradient of the inputs need only unique rows.
#pragma once

#include "backward.h"
#include "forward.h"

namespace elmo_fast::cpu {

template <class Vec>
class WeightGradients : BackwardMemory<Vec> {
  using Base = BackwardMemory<Vec>;
  using Base::d_, Base::team_, Base::shape_, Base::projected_, Base::scratch_, Base::weights_, Base::saved_;
  using Base::floats, Base::packed, Base::paneled, Base::starts_sequence, Base::panel_width, Base::result_;

 public:
  WeightGradients(const LstmBackward& direction, Team team)
      : Base(direction, team), unique_(direction.chunks->unique_count),
        gate_panels_(weights_.gate_panels, team.rank, team.size) {}

  void run() const {
    pack_left_operands();
    team_.barrier->wait();
    if (d_.grad_weights || d_.grad_biases)
      gate_weights(scratch_.left_h, shape_.projection + 1, d_.packed_rows, shape_.input);
    if (d_.grad_projections) projection();
    add_up_repeated_rows();
    if (d_.grad_weights) gate_weights(scratch_.left_x, shape_.input, unique_, 0);
    team_.barrier->wait();
    if (d_.grad_inputs) inputs();
  }

 private:
  // Packs a left operand [rows, columns]. value(row, column) points to the row's values up to the panel's end.
  template <class Value>
  void pack_left(size_t offset, int64_t columns, int64_t rows, Value value) const {
    const Blocks blocks(columns, Vec::rows, true);
    const Partition mine(blocks.count, team_.rank, team_.size);
    for (int64_t b = mine.begin; b < mine.end; ++b) {
      const int64_t begin = blocks.begin(b), count = blocks.size(b);
      float* to = floats(offset) + begin * rows;
      for (int64_t row = 0; row < rows; ++row, to += count)
        for (int64_t k = 0; k < count;) {
          const int64_t run = smaller(count - k, panel_width - (begin + k) % panel_width);
          copy_floats(to + k, value(row, begin + k), run);
          k += run;
        }
    }
  }

  void pack_left_operands() const {
    if (d_.grad_weights)
      pack_left(scratch_.left_x, shape_.input, unique_,
                [this](int64_t row, int64_t column) { return d_.unique_inputs[row] + column; });
    if (d_.grad_projections)
      pack_left(scratch_.left_dp, shape_.projection, d_.packed_rows, [this](int64_t row, int64_t column) {
        return paneled(scratch_.dp, column / panel_width, row) + column % panel_width;
      });
    if (d_.grad_weights || d_.grad_biases) pack_left_h();
  }

  // Packs [h before the packed row, 1], step by step; m W_P is clipped again as in the forward.
  void pack_left_h() const {
    const int64_t columns = shape_.projection + 1, rows = d_.packed_rows;
    const Blocks blocks(columns, Vec::rows, true);
    const Partition mine(blocks.count, team_.rank, team_.size);
    for (int64_t t = 0; t < d_.steps; ++t)
      for (int64_t slot = 0; slot < d_.batch_sizes[t]; ++slot)
        for (int64_t b = mine.begin; b < mine.end; ++b) {
          const int64_t begin = blocks.begin(b), count = blocks.size(b);
          float* to = floats(scratch_.left_h) + begin * rows + (d_.row_begin[t] + slot) * count;
          const int64_t of_h = smaller(count, shape_.projection - begin);
          previous_h(t, slot, begin, of_h, to);
          if (of_h < count) to[of_h] = 1.0f;
        }
  }

  void previous_h(int64_t t, int64_t slot, int64_t begin, int64_t count, float* to) const {
    if (!starts_sequence(d_.row_begin[t] + slot)) {
      if (t > 0) emitted_h(d_.row_begin[t - 1] + slot, begin, count, to);
      else copy_floats(to, d_.h + slot * 2 * shape_.projection + begin, count);
    } else if (d_.initial_h) {
      copy_floats(to, d_.initial_h + begin, count);
    } else {
      clear_floats(to, count);
    }
  }

  void emitted_h(int64_t row, int64_t begin, int64_t count, float* to) const {
    const float* from = projected_ ? saved_.projected : floats(scratch_.m);
    const float limit = d_.proj_clip;
    for (int64_t k = 0; k < count; ++k) {
      const int64_t column = begin + k;
      const float h = from[(column / panel_width * d_.packed_rows + row) * panel_width + column % panel_width];
      to[k] = !projected_ ? h : h > limit ? limit : h < -limit ? -limit : h;
    }
  }

  // result_ [columns of left, panel_width] = left^T x right over `rows` rows.
  void sum_over_rows(size_t left, int64_t columns, int64_t rows, const float* right) const {
    clear_floats(result_, columns * panel_width);
    const Left<Fp32Gemm<Vec>> operand = {reinterpret_cast<char*>(floats(left)), rows};
    multiply_panel(gemm_, operand, Blocks(columns, Vec::rows, true), reinterpret_cast<const char*>(right),
                   {result_, panel_width}, result_, panel_width);
  }

  // Copies the columns of two gates, a panel of dz, from a row of result_ to the row `to` [4D].
  void store_gates(int64_t panel, int64_t row, float* to) const {
    const int64_t cell = panel / 2 * Vec::width, gate = panel % 2 * 2;
    for (int64_t k = 0; k < 2; ++k)
      copy_floats(to + (gate + k) * shape_.dim + cell, result_ + row * panel_width + k * Vec::width,
                  smaller(Vec::width, shape_.dim - cell));
  }

  // Computes a row of dW per column of `left`, beginning at row `first`; the last column, if of ones, gives dB.
  void gate_weights(size_t left, int64_t columns, int64_t rows, int64_t first) const {
    const int64_t biases = shape_.input + shape_.projection;
    for (int64_t panel = gate_panels_.begin; panel < gate_panels_.end; ++panel) {
      sum_over_rows(left, columns, rows, paneled(scratch_.dz, panel, 0));
      for (int64_t k = 0; d_.grad_weights && k < smaller(columns, biases - first); ++k)
        store_gates(panel, k, d_.grad_weights + (first + k) * 4 * shape_.dim);
      if (d_.grad_biases && first + columns > biases) store_gates(panel, columns - 1, d_.grad_biases);
    }
  }

  // dW_P, panel by panel of cells, transposed when it is stored.
  void projection() const {
    const Partition mine(panels_of<Vec>(shape_.dim), team_.rank, team_.size);
    for (int64_t panel = mine.begin; panel < mine.end; ++panel) {
      sum_over_rows(scratch_.left_dp, shape_.projection, d_.packed_rows, paneled(scratch_.m, panel, 0));
      for (int64_t cell = panel * panel_width; cell < smaller((panel + 1) * panel_width, shape_.dim); ++cell)
        for (int64_t k = 0; k < shape_.projection; ++k)
          d_.grad_projections[cell * shape_.projection + k] = result_[k * panel_width + cell % panel_width];
    }
  }

  // Sums dz of packed rows that read the same input row, and stores the sum at the index of the unique row. Since
  // unique rows are in order of first use, that index is never after the packed row, and no row is overwritten before
  // it is read.
  void add_up_repeated_rows() const {
    if (unique_ == d_.packed_rows) return;
    const int32_t* slots = d_.unique_index;
    for (int64_t panel = gate_panels_.begin; panel < gate_panels_.end; ++panel) {
      float* rows = paneled(scratch_.dz, panel, 0);
      int64_t seen = 0;
      for (int64_t row = 0; row < d_.packed_rows; ++row) {
        const float* from = rows + row * panel_width;
        float* to = rows + slots[row] * panel_width;
        const bool first = slots[row] == seen;
        seen += first;
        for (int v = 0; v < panel_width; v += Vec::width)
          Vec::store(to + v, first ? Vec::load(from + v) : Vec::load(to + v) + Vec::load(from + v));
      }
    }
  }

  // dx = dz W_x^T of this thread's unique rows, in groups that stay in the cache.
  void inputs() const {
    const Partition mine(unique_, team_.rank, team_.size);
    for (int64_t row = mine.begin; row < mine.end; row += rows_at_once) {
      const int64_t count = smaller(rows_at_once, mine.end - row);
      for (int64_t panel = 0; panel < panels_of<Vec>(shape_.input); ++panel) {
        float sums[rows_at_once * panel_width];
        this->product_of_rows(scratch_.dz, row, count, weights_.gate_panels, packed(weights_.input), panel, sums);
        const int64_t first = panel * panel_width, columns = smaller(panel_width, shape_.input - first);
        for (int64_t k = 0; k < count; ++k)
          copy_floats(d_.grad_inputs + (d_.unique_inputs[row + k] - d_.inputs) + first, sums + k * panel_width,
                      columns);
      }
    }
  }

  static constexpr int64_t rows_at_once = 5 * Vec::rows;

  const int64_t unique_;
  const Partition gate_panels_;
  const Fp32Gemm<Vec> gemm_{};
};

template <class Vec>
constexpr LstmTrainingEngine lstm_training_engine() {
  return {[](const LstmShape& s, int64_t packed_rows) {
            const Saved<Vec> saved(s, packed_rows, nullptr);
            return float_bytes(saved.end - saved.gates);
          },
          [](const LstmShape& s) { return float_bytes(BackwardWeights<Vec>(s).size); }, backward_pack_direction<Vec>,
          [](const LstmDirection& direction, int team_size) { return BackwardScratch<Vec>(direction, team_size).size; },
          [](const LstmBackward& direction, Team team) {
            BackwardLoop<Vec>(direction, team).run();
            WeightGradients<Vec>(direction, team).run();
          }};
}

}  // namespace elmo_fast::cpu
