// The time loop of one direction, run by every thread of its team.
//
// Per chunk: x W + B of its unique rows. Per step: gates and cells of this thread's tiles, barrier, projection of
// this thread's columns, which also writes the next step's h operand, barrier. A thread reads only the x W + B and
// cells that it wrote. A team of one projects a unit of m while it is in the cache. Without a projection the cells
// write the next h operand and there is no second barrier.
//
// In `highest`, the activations of the gates, the cells and m W_P before its clip are also stored in `saved`, if it is
// not null, for the gradients (layout.h); results are bitwise equal.
#pragma once

#include <type_traits>

#include "../gemm/fp32.h"
#include "cell_rows.h"
#include "input_gemm.h"

namespace elmo_fast::cpu {

template <class Gemm>
class LstmLoop : InputGemm<Gemm> {
  using Base = InputGemm<Gemm>;
  using Base::d_, Base::team_, Base::shape_, Base::weights_, Base::scratch_, Base::tiles_, Base::gemm_;
  using Base::floats, Base::panel_width, Base::gate_width, Base::own_sums;
  using Vec = typename Gemm::Vec;
  using F = typename Vec::F;

 public:
  LstmLoop(const LstmDirection& direction, Team team)
      : Base(direction, team), panels_(weights_.panels, team.rank, team.size), saved_(shape_, d_.packed_rows, d_.saved),
        cell_limit_(Vec::set1(d_.cell_clip)), proj_limit_(Vec::set1(d_.proj_clip)) {}

  void run() {
    for_each_cell([](float* cells, float* c, int64_t count) { put_cells(cells, c, count); });
    if (team_.rank == 0) {
      clear_padding();
      for (int64_t slot = 0; slot < d_.batch_sizes[0]; ++slot) put_h(0, slot, 0, shape_.projection, h_of(slot));
    }
    meet();
    for (int64_t k = 0; k < d_.chunk_count; ++k) {
      this->project_inputs(d_.chunks[k]);
      for (int64_t t = d_.chunks[k].step_begin; t < d_.chunks[k].step_end; ++t) step(t);
    }
    gemm_.end();
    for_each_cell([](float* cells, float* c, int64_t count) { copy_floats(c, cells, count); });
  }

 private:
  template <class, class>
  friend class CellRows;

  bool saves() const { return std::is_same_v<Gemm, Fp32Gemm<Vec>> && d_.saved; }
  void meet() const { team_.barrier->wait(); }
  float* h_of(int64_t slot) const { return d_.h + slot * 2 * shape_.projection; }
  // [slots, gate_width]
  float* gates(int64_t t, int64_t tile) const {
    return saves() ? saved_.gates + (tile * d_.packed_rows + d_.row_begin[t]) * gate_width : own_sums();
  }
  Left<Gemm> h_operand(int64_t t) const { return {d_.scratch + scratch_.h[t & 1], shape_.projection}; }
  // The unit of m that holds `cell`.
  Left<Gemm> m_operand(int64_t cell) const {
    const int64_t unit = cell / Gemm::unit, place = unit % scratch_.m_units;
    return {d_.scratch + scratch_.m + size_t(place) * scratch_.m_unit,
            smaller(Gemm::unit, shape_.dim - unit * Gemm::unit)};
  }
  // [slots, unit] in fp32 of the same unit.
  float* m_values(int64_t cell) const {
    return floats(scratch_.m_values) + cell / Gemm::unit % scratch_.m_units * scratch_.slots * Gemm::unit;
  }
  int64_t packed_row(int64_t t, int64_t slot) const { return d_.row_begin[t] + slot; }
  int64_t unique_index(int64_t t, int64_t slot) const { return d_.unique_index[packed_row(t, slot)]; }
  bool starts_sequence(int64_t t, int64_t slot) const {
    return d_.sequence_start && d_.sequence_start[packed_row(t, slot)];
  }

  // [tiles, slots, vector]; unused cells of the last tile are zero.
  float* cells(int64_t tile, int64_t slot) const { return floats(scratch_.c) + (tile * d_.slots + slot) * Vec::width; }
  int64_t cell_count(int64_t tile) const { return smaller(Vec::width, shape_.dim - tile * Vec::width); }

  // Calls body(cells, the same cells in c [slots, 2D], their count) for this thread's tiles.
  template <class Body>
  void for_each_cell(Body body) const {
    for (int64_t tile = tiles_.begin; tile < tiles_.end; ++tile)
      for (int64_t slot = 0; slot < d_.slots; ++slot)
        body(cells(tile, slot), d_.c + slot * 2 * shape_.dim + tile * Vec::width, cell_count(tile));
  }

  // `from` [count], or null for zeros.
  static void put_cells(float* cells, const float* from, int64_t count) {
    Vec::store(cells, Vec::set1(0.0f));
    if (from) copy_floats(cells, from, count);
  }

  void start_sequence(int64_t slot) const {
    for (int64_t tile = tiles_.begin; tile < tiles_.end; ++tile)
      put_cells(cells(tile, slot), d_.initial_c ? d_.initial_c + tile * Vec::width : nullptr, cell_count(tile));
  }

  // Clears columns of left operands beyond k: put_left need not write them, and they are multiplied by zero weights.
  void clear_padding() const {
    if (Gemm::padded(1) == 1 || Gemm::takes_units) return;
    std::memset(d_.scratch + scratch_.x, 0, scratch_.projections - scratch_.x);
    std::memset(d_.scratch + scratch_.h[0], 0, scratch_.c - scratch_.h[0]);
  }

  // Writes columns [begin, begin + count) of a slot's h, or of the initial state, to step t's operand.
  void put_h(int64_t t, int64_t slot, int64_t begin, int64_t count, const float* h) {
    if constexpr (Gemm::takes_units) return;  // gather_h does
    const Blocks blocks = Gemm::blocks(d_.batch_sizes[t]);
    const Left<Gemm> left = h_operand(t);
    const int64_t b = blocks.find(slot);
    const float zeros[panel_width] = {};
    if (!starts_sequence(t, slot)) return left.put(blocks, b, slot, begin, count, h);
    for (int64_t k = 0; k < count; k += panel_width)
      left.put(blocks, b, slot, begin + k, smaller(panel_width, count - k),
               d_.initial_h ? d_.initial_h + begin + k : zeros);
  }

  // The operand of step t from the states, where it takes complete units: this thread's blocks. A state that is
  // replaced is written anew at the end of the step.
  void gather_h(int64_t t, const Blocks& blocks) const {
    h_operand(t).gather(blocks, Partition(blocks.count, team_.rank, team_.size), [&](int64_t slot) {
      float* const h = h_of(slot);
      if (starts_sequence(t, slot)) {
        if (d_.initial_h) copy_floats(h, d_.initial_h, shape_.projection);
        else clear_floats(h, shape_.projection);
      }
      return h;
    });
    meet();
  }

  void step(int64_t t) {
    for (int64_t slot = 0; d_.sequence_start && slot < d_.batch_sizes[t]; ++slot)
      if (starts_sequence(t, slot)) start_sequence(slot);
    const Blocks blocks = Gemm::blocks(d_.batch_sizes[t]);
    if constexpr (Gemm::takes_units) gather_h(t, blocks);
    gemm_.begin(d_.batch_sizes[t]);
    if constexpr (Gemm::interleaves) make_cells_between(t, blocks);
    else make_cells(t, blocks);
    meet();
    if (!weights_.panels) return;
    if (!alone_) {
      if constexpr (Gemm::takes_units) {
        gather_m(Partition(scratch_.units * blocks.count, team_.rank, team_.size), blocks);
        meet();
      }
      for (int64_t unit = 0; unit < scratch_.units; ++unit) project(unit, blocks);
    }
    emit_projected(t);
    meet();
  }

  // This thread's tiles of unit `unit` of m.
  Partition tiles_of(int64_t unit) const {
    constexpr int64_t tiles = Gemm::unit / Vec::width;
    return {larger(tiles_.begin, unit * tiles), smaller(tiles_.end, (unit + 1) * tiles)};
  }

  // Gates and cells of this thread's tiles, tile by tile. With few slots every second step goes from the last tile to
  // the first: it begins with the weights that the step before has left in the cache. A team of one projects a unit of
  // m immediately, in a reversed step after all units, since sums are in the order of units.
  void make_cells(int64_t t, const Blocks& blocks) {
    const bool reversed = scratch_.reverses && t % 2 == 1;
    const Partition units(0, scratch_.units), both(0, 2);
    const int64_t bytes = panel_bytes<Gemm>(shape_.projection);
    for (int64_t u = 0; u < units.count(); ++u) {
      const int64_t unit = units.at(u, reversed);
      const Partition tiles = tiles_of(unit);
      for (int64_t k = 0; k < tiles.count(); ++k) {
        const int64_t tile = tiles.at(k, reversed);
        const char* right = d_.weights + weights_.recurrent + tile * weights_.recurrent_tile;
        float* const z = gates(t, tile);
        for (int64_t p = 0; p < 2; ++p) {
          const int64_t panel = both.at(p, reversed);
          multiply_panel(gemm_, h_operand(t), blocks, right + panel * bytes, {}, z + panel * panel_width, gate_width,
                         {}, reversed ? right + (panel - 1) * bytes : nullptr);
        }
        for (int64_t b = 0; b < blocks.count; ++b) update_cells(t, tile, blocks, b);
      }
      if (alone_ && !reversed) project(unit, blocks);
    }
    for (int64_t unit = 0; alone_ && reversed && unit < units.end; ++unit) project(unit, blocks);
  }

  // As make_cells, but a tile's cells are computed between the dots of the next tile's product, so a unit of m is
  // projected after the gates of the next unit.
  void make_cells_between(int64_t t, const Blocks& blocks) {
    for (int64_t slot = 0; slot < blocks.rows; ++slot) this->prefetch_projections(tiles_.begin, unique_index(t, slot));
    CellRows<Gemm, LstmLoop> rows(*this, t);
    for (int64_t unit = 0; unit < scratch_.units; ++unit) {
      multiply_tiles(gemm_, h_operand(t), blocks, d_.weights + weights_.recurrent, tiles_of(unit), own_sums(), rows);
      if (alone_ && unit > 0) project(unit - 1, blocks);
    }
    finish_rows(rows);
    if (alone_) project(scratch_.units - 1, blocks);
  }

  // Gates -> c, m of a block's rows in a tile. In two passes, so that the latencies of the first pass's long dependency
  // chains overlap between rows.
  void update_cells(int64_t t, int64_t tile, const Blocks& blocks, int64_t b) {
    const int64_t begin = blocks.begin(b), end = begin + blocks.size(b);
    float* const z = gates(t, tile);
    for (int64_t slot = begin; slot < end; ++slot) {
      const int64_t index = unique_index(t, slot);
      this->prefetch_projections(tile + 1, index);
      update_cell(this->projections(tile) + index * gate_width, z + slot * gate_width, cells(tile, slot));
    }
    if (saves())
      copy_floats(saved_.cells + (tile * d_.packed_rows + d_.row_begin[t] + begin) * Vec::width, cells(tile, begin),
                  (end - begin) * Vec::width);
    float* const all_m = own_sums();
    for (int64_t slot = begin; slot < end; ++slot) {
      const F out = Vec::load(z + slot * gate_width + 3 * Vec::width);
      const F squashed = Gemm::Activations::tanh(Vec::load(cells(tile, slot)));
      Vec::store(all_m + slot * gate_width, out * squashed);
    }
    // m goes to the projection's operand, or is h.
    const int64_t cell = tile * Vec::width, count = cell_count(tile);
    for (int64_t slot = begin; slot < end; ++slot) {
      const float* const m = all_m + slot * gate_width;
      if (weights_.panels) m_operand(cell).put(blocks, b, slot, cell % Gemm::unit, count, m);
      else emit(t, slot, cell, count, m);
    }
  }

  // x W + B and z = h W_h [gate_width], c [vector] -> c, and sigmoid(o) replaces o in z; if saved, all activations do.
  void update_cell(const float* x, float* z, float* c) const {
    const auto gate = [x, z](int64_t number) {
      return Vec::load(z + number * Vec::width) + Vec::load(x + number * Vec::width);
    };
    const F forget = Gemm::Activations::sigmoid(gate(2) + Vec::set1(1.0f));
    const F input = Gemm::Activations::sigmoid(gate(0));
    const F candidate = Gemm::Activations::tanh(gate(1));
    if (saves()) {
      Vec::store(z, input);
      Vec::store(z + Vec::width, candidate);
      Vec::store(z + 2 * Vec::width, forget);
    }
    Vec::store(c, clip(forget * Vec::load(c) + input * candidate, cell_limit_));
    Vec::store(z + 3 * Vec::width, Gemm::Activations::sigmoid(gate(3)));
  }

  static F clip(F x, F limit) { return Vec::at_most(limit, Vec::at_least(Vec::set1(0.0f) - limit, x)); }

  // Writes columns [begin, begin + count) of a slot's new h to the state, the output and the next step's operand.
  [[gnu::noinline]] void emit(int64_t t, int64_t slot, int64_t begin, int64_t count, const float* h) {
    copy_floats(d_.h + slot * 2 * shape_.projection + begin, h, count);
    if (float* const to = d_.outputs[packed_row(t, slot)]) {
      if (d_.added) {
        const float* const x = d_.added[packed_row(t, slot)] + begin;
        for (int64_t k = 0; k < count; ++k) to[begin + k] = h[k] + x[k];
      } else {
        copy_floats(to + begin, h, count);
      }
    }
    if (t + 1 < d_.steps && slot < d_.batch_sizes[t + 1]) put_h(t + 1, slot, begin, count, h);
  }

  float* projected(int64_t panel) const {
    return floats(scratch_.projected) + panel * Gemm::buffer_rows(d_.slots) * panel_width;
  }

  // Units of m in fp32 -> operands: pairs of a unit and a block, block by block within a unit.
  void gather_m(const Partition& pairs, const Blocks& blocks) const {
    for (int64_t pair = pairs.begin; pair < pairs.end; ++pair) {
      const int64_t cell = pair / blocks.count * Gemm::unit, block = pair % blocks.count;
      m_operand(cell).gather(blocks, Partition(block, block + 1),
                             [&](int64_t slot) { return m_values(cell) + slot * Gemm::unit; });
    }
  }

  // m W_P for this thread's columns += a unit of m x its weights.
  void project(int64_t unit, const Blocks& blocks) {
    if (Gemm::takes_units && alone_) gather_m(Partition(unit * blocks.count, (unit + 1) * blocks.count), blocks);
    const Left<Gemm> m = m_operand(unit * Gemm::unit);
    const char* const right = d_.weights + weights_.projection + unit * weights_.panels * panel_bytes<Gemm>(Gemm::unit);
    const int64_t bytes = panel_bytes<Gemm>(m.k);
    for (int64_t panel = panels_.begin; panel < panels_.end; ++panel) {
      float* const sums = projected(panel);
      multiply_unit(gemm_, m, blocks, 0, {right + panel * bytes, right + (panel + 1) * bytes},
                    unit ? Start{sums, panel_width} : Start{}, sums, panel_width);
    }
  }

  // h = clip(m W_P) of this thread's columns.
  void emit_projected(int64_t t) {
    for (int64_t panel = panels_.begin; panel < panels_.end; ++panel)
      for (int64_t slot = 0; slot < d_.batch_sizes[t]; ++slot) emit_projected(t, slot, panel, projected(panel));
  }

  void emit_projected(int64_t t, int64_t slot, int64_t panel, const float* sums) {
    float h[panel_width];
    for (int64_t v = 0; v < 2; ++v) {
      const F sum = Vec::load(Gemm::sum_at(sums, panel_width, slot, v));
      if (saves())
        Vec::store(saved_.projected + (panel * d_.packed_rows + packed_row(t, slot)) * panel_width + v * Vec::width,
                   sum);
      Vec::store(h + v * Vec::width, clip(sum, proj_limit_));
    }
    emit(t, slot, panel * panel_width, smaller(panel_width, shape_.projection - panel * panel_width), h);
  }

  const Partition panels_;
  const bool alone_ = weights_.panels && team_.size == 1;
  const Saved<Vec> saved_;
  const F cell_limit_, proj_limit_;
};

template <class Gemm>
void run_lstm(const LstmDirection& direction, Team team) {
  LstmLoop<Gemm>(direction, team).run();
}

template <class Gemm>
constexpr LstmEngine lstm_engine() {
  return {[](const LstmShape& s) { return WeightLayout<Gemm>(s).size; }, lstm_pack_direction<Gemm>,
          [](const LstmDirection& direction, int team_size) { return ScratchLayout<Gemm>(direction, team_size).size; },
          run_lstm<Gemm>};
}

}  // namespace elmo_fast::cpu
