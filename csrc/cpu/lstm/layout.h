// Memory layouts of one direction: packed weights, scratch, and activations saved for the gradients.
//
// A tile of cells is a vector of cells. The gates of a tile are four vectors i, j, f, o (gate_width), in two panels of
// two gates.
//
// A paneled matrix [panels, rows, panel_width] stores panel_width columns of all rows together; unused columns of the
// last panel are zero. A panel can be used directly as a right operand, for sums over rows, and its rows as left
// operands. In the gradients, gates are in the order of the tiles: a tile has two panels, (i, j) and (f, o). Cells are
// in panels of two tiles.
#pragma once

#include "../engine.h"
#include "../gemm/fp32.h"

namespace elmo_fast::cpu {

// One direction's packed weights:
//   input      [tiles, 2 panels, in]   recurrent [tiles, 2 panels, P]   bias [tiles, gate_width]
//   projection [units of D, panels of P, unit], or absent
template <class Gemm>
struct WeightLayout : Offsets {
  using Vec = typename Gemm::Vec;
  const LstmShape s;
  const int64_t tiles = divided_up(s.dim, Vec::width);
  const int64_t panels = s.dim != s.projection ? divided_up(s.projection, Gemm::panel_width) : 0;
  const int64_t input_tile = 2 * panel_bytes<Gemm>(s.input), recurrent_tile = 2 * panel_bytes<Gemm>(s.projection);
  const size_t input = take(tiles * input_tile), recurrent = take(tiles * recurrent_tile);
  const size_t bias = take_floats(tiles * 4 * Vec::width);
  const size_t projection = take(panels * panel_bytes<Gemm>(s.dim));

  explicit WeightLayout(const LstmShape& shape) : s(shape) {}
};

// One direction's scratch. Numbers of rows include the padding that products may access (Gemm::buffer_rows).
template <class Gemm>
struct ScratchLayout : Offsets {
  using Vec = typename Gemm::Vec;
  using InputValue = typename Gemm::InputRows::Value;
  static constexpr int64_t panel_width = Gemm::panel_width, gate_width = 2 * panel_width;
  const WeightLayout<Gemm> w;
  const int64_t unique, slots, threads;

  // left operand [max_unique, in]
  const size_t x = take(left_bytes<Gemm>(unique, w.s.input));
  // x W + B of the chunk's rows, InputValue [tiles, max_unique, gate_width]
  const size_t projections = take(w.tiles * unique * gate_width * int64_t(sizeof(InputValue)));
  // h: left operands [slots, P] of this step and the next
  const size_t h[2] = {take(left_bytes<Gemm>(slots, w.s.projection)), take(left_bytes<Gemm>(slots, w.s.projection))};
  // m: left operands [units of D][slots, unit]; in a single operand, rows would be a power of two apart and compete for
  // the same sets of a cache. A team of one thread needs only the last two units, unless k has padding or steps are
  // reversed.
  const size_t m_unit = left_bytes<Gemm>(slots, smaller(Gemm::unit, w.s.dim));
  const int64_t units = divided_up(w.s.dim, Gemm::unit);
  const bool reverses = !Gemm::interleaves && Gemm::blocks(slots).count == 1;  // every second step
  const int64_t m_units = threads == 1 && !reverses && Gemm::padded(w.s.dim) == w.s.dim ? smaller(units, 2) : units;
  const size_t m = take(w.panels ? m_units * int64_t(m_unit) : 0);
  // [units of D][slots, unit] in fp32, where the operand takes complete units
  const size_t m_values = take_floats(w.panels && Gemm::takes_units ? m_units * slots * Gemm::unit : 0);
  // [tiles, slots, vector]
  const size_t c = take_floats(w.tiles * slots * Vec::width);
  // m W_P [panels, slots, panel_width]
  const size_t projected = take_floats(w.panels * slots * panel_width);
  // per thread, sums of a tile [slots, gate_width]; if products interleave, of two tiles, also for the input GEMM
  const int64_t sums_floats = gate_width * (Gemm::interleaves ? 2 * larger(slots, unique) : slots);
  const size_t sums = take_floats(sums_floats * threads);

  ScratchLayout(const LstmDirection& d, int team_size)
      : w(d.shape), unique(Gemm::buffer_rows(d.max_unique)), slots(Gemm::buffer_rows(d.slots)), threads(team_size) {}
};

// Packs k rows of gate weights: per tile, two panels of two gates.
template <class Gemm>
void pack_gates(const LstmShape& s, const float* weight, int64_t k, char* packed) {
  for (int64_t cell = 0; cell < s.dim; cell += Gemm::Vec::width)
    for (int gate = 0; gate < 4; gate += 2, packed += panel_bytes<Gemm>(k)) {
      const float* start = weight + gate * s.dim + cell;
      const int64_t columns = smaller(Gemm::Vec::width, s.dim - cell);
      pack_panel<Gemm>({{start, start + s.dim}, {columns, columns}, 4 * s.dim}, k, packed);
    }
}

template <class Gemm>
void pack_projection(const LstmShape& s, const float* projection, int64_t panels, char* packed) {
  for (int64_t k0 = 0; k0 < s.dim; k0 += Gemm::unit)
    for (int64_t panel = 0; panel < panels; ++panel) {
      const PanelSource source = plain_panel<typename Gemm::Vec>(projection, s.projection, panel);
      const int64_t count = smaller(Gemm::unit, s.dim - k0);
      Gemm::pack_right(source, k0, count, packed);
      packed += panel_bytes<Gemm>(count);
    }
}

template <class Gemm>
void lstm_pack_direction(const LstmShape& s, const LstmWeights& from, char* packed) {
  const WeightLayout<Gemm> w(s);
  pack_gates<Gemm>(s, from.weight, s.input, packed + w.input);
  pack_gates<Gemm>(s, from.weight + s.input * 4 * s.dim, s.projection, packed + w.recurrent);
  pack_gates<Fp32Gemm<typename Gemm::Vec>>(s, from.bias, 1, packed + w.bias);
  if (w.panels) pack_projection<Gemm>(s, from.projection, w.panels, packed + w.projection);
}

template <class Vec>
int64_t panels_of(int64_t columns) {
  return divided_up(columns, 2 * Vec::width);
}

// Activations that a forward saves for the gradients.
template <class Vec>
struct Saved {
  const LstmShape s;
  const int64_t rows, tile_floats = divided_up(s.dim, Vec::width) * Vec::width * rows;
  float* const gates;  // [tiles, S, gate_width] after their nonlinearities
  float* const cells = gates + 4 * tile_floats;  // [tiles, S, vector] after the clip
  // m W_P [panels, S, panel_width] before the clip; absent without a projection
  float* const projected = cells + tile_floats;
  float* const end = projected + (s.dim == s.projection ? 0 : panels_of<Vec>(s.projection) * 2 * Vec::width * rows);

  Saved(const LstmShape& shape, int64_t packed_rows, float* saved) : s(shape), rows(packed_rows), gates(saved) {}
};

// Offsets in floats into one direction's weights for the gradients, right operands [panels, rows, panel_width]:
//   input      [panels of in, gates]   recurrent [panels of P, gates]   projection [panels of D, P padded], or absent
template <class Vec>
struct BackwardWeights {
  static constexpr int64_t panel_width = 2 * Vec::width;
  const LstmShape s;
  const int64_t gate_panels = 2 * divided_up(s.dim, Vec::width), gates = gate_panels * panel_width;
  const int64_t p_panels = panels_of<Vec>(s.projection), d_panels = panels_of<Vec>(s.dim);
  const int64_t input = 0, recurrent = panels_of<Vec>(s.input) * gates * panel_width;
  const int64_t projection = recurrent + p_panels * gates * panel_width;
  const int64_t size = projection + (s.dim == s.projection ? 0 : d_panels * p_panels * panel_width * panel_width);

  explicit BackwardWeights(const LstmShape& shape) : s(shape) {}
};

// One direction's scratch for the gradients.
template <class Vec>
struct BackwardScratch : Offsets {
  static constexpr int64_t panel_width = 2 * Vec::width;
  const BackwardWeights<Vec> w;
  const int64_t rows, unique, slots, threads, in = w.s.input, p = w.s.projection, cells = w.gates / 4;

  const size_t dz = take_floats(w.gates * rows);  // [gate panels, S]: gradients of the gates' arguments
  // [panels of P, S]: gradients of m W_P; without a projection, of m
  const size_t dp = take_floats(w.p_panels * rows * panel_width);
  const size_t m = take_floats(w.d_panels * rows * panel_width);  // [panels of D, S]
  const size_t dh = take_floats(w.p_panels * slots * panel_width);  // [panels of P, slots], carried from step to step
  const size_t dc = take_floats(cells * slots);  // [tiles, slots, vector] likewise
  const size_t c = take_floats(cells * slots);  // [tiles, slots, vector]: c before the first step
  const size_t initial_c = take_floats(cells);  // [tiles, vector]
  const size_t initial_dh = take_floats(w.p_panels * panel_width);  // gradients of the initial state
  const size_t initial_dc = take_floats(cells);
  const size_t left_x = take_floats(unique * in);  // [in, unique], left operand of sums over rows
  const size_t left_h = take_floats(rows * (p + 1));  // [P + 1, S]: h before each packed row, and ones
  const size_t left_dp = take_floats(rows * p);  // [P, S]
  // per thread, up to [in, P + 1 or slots, panel_width]
  const int64_t result_floats = larger(larger(in, p + 1), slots) * panel_width;
  const size_t result = take_floats(result_floats * threads);

  BackwardScratch(const LstmDirection& d, int team_size)
      : w(d.shape), rows(d.packed_rows), unique(d.max_unique), slots(d.slots), threads(team_size) {}
};

// Transposes `from` [count, columns, row stride `stride`] to packed [panels of count, rows, panel_width], whose row
// row_of(k) is column k. `packed` must be zero before.
template <class Vec, class RowOf>
void pack_transposed(const float* from, int64_t stride, int64_t count, int64_t columns, int64_t rows, RowOf row_of,
                     float* packed) {
  constexpr int64_t panel_width = 2 * Vec::width;
  for (int64_t k = 0; k < count; ++k, from += stride) {
    float* to = packed + k / panel_width * rows * panel_width + k % panel_width;
    for (int64_t column = 0; column < columns; ++column) to[row_of(column) * panel_width] = from[column];
  }
}

// Packs `count` rows of W, transposed.
template <class Vec>
void pack_gates_transposed(const LstmShape& s, const float* weight, int64_t count, float* packed) {
  for (int64_t gate = 0; gate < 4; ++gate) {
    const auto row_of = [gate](int64_t cell) {
      return (cell / Vec::width * 4 + gate) * Vec::width + cell % Vec::width;
    };
    pack_transposed<Vec>(weight + gate * s.dim, 4 * s.dim, count, s.dim, BackwardWeights<Vec>(s).gates, row_of, packed);
  }
}

template <class Vec>
void backward_pack_direction(const LstmShape& s, const LstmWeights& from, char* packed) {
  const BackwardWeights<Vec> w(s);
  float* to = reinterpret_cast<float*>(packed);
  clear_floats(to, w.size);
  pack_gates_transposed<Vec>(s, from.weight, s.input, to + w.input);
  pack_gates_transposed<Vec>(s, from.weight + s.input * 4 * s.dim, s.projection, to + w.recurrent);
  if (from.projection)
    pack_transposed<Vec>(
        from.projection, s.projection, s.dim, s.projection, w.p_panels * w.panel_width, [](int64_t k) { return k; },
        to + w.projection);
}

}  // namespace elmo_fast::cpu
