// Where everything lies in memory, of one direction: packed weights, scratch, and what a forward saves for gradients.
//
// Cells go in tiles of one vector: four vectors i, j, f, o (gate_width) make a tile's gates, two panels each of two
// gates.
//
// A paneled matrix [panels, rows, panel_width] holds panel_width columns of all its rows together, the unused columns
// of the last panel zero. A panel is a right operand as it stands, for sums over rows; its rows serve as left operands.
// For the gradients gates lie in the order of the tiles: a tile makes two panels, (i, j) and (f, o). Cells lie in
// panels of two tiles.
#pragma once

#include <type_traits>

#include "../engine.h"
#include "../gemm/packing.h"

namespace elmo_fast::cpu {

// Offsets in bytes into one direction's packed weights:
//   input      [tiles, 2 panels, in]   recurrent [tiles, 2 panels, P]   bias [tiles, gate_width]
//   projection [units of D, panels of P, unit], or nothing
template <class Gemm>
struct WeightLayout {
  using Vec = typename Gemm::Vec;
  int64_t tiles, panels, input_tile, recurrent_tile;
  size_t input, recurrent, bias, projection, size;

  explicit WeightLayout(const LstmShape& s) {
    const bool projected = s.dim != s.projection;
    tiles = divided_up(s.dim, Vec::width);
    panels = projected ? divided_up(s.projection, Gemm::panel_width) : 0;
    input_tile = 2 * panel_bytes<Gemm>(s.input);
    recurrent_tile = 2 * panel_bytes<Gemm>(s.projection);
    input = 0;
    recurrent = input + aligned64(tiles * input_tile);
    bias = recurrent + aligned64(tiles * recurrent_tile);
    projection = bias + aligned64(tiles * 4 * Vec::width * static_cast<int64_t>(sizeof(float)));
    size = projection + aligned64(panels * panel_bytes<Gemm>(s.dim));
  }
};

// Offsets in bytes into one direction's scratch. Row counts are what products may touch: Gemm::buffer_rows.
template <class Gemm>
struct ScratchLayout {
  using Vec = typename Gemm::Vec;
  using InputValue = typename Gemm::InputRows::Value;
  static constexpr int64_t panel_width = Gemm::panel_width, gate_width = 2 * panel_width;

  size_t x;  // left operand [max_unique, in]
  size_t projections;  // x W + B of the chunk's rows, InputValue [tiles, max_unique, gate_width]
  size_t h[2];  // left operands [slots, P] of this step and the next
  size_t m;  // left operand [slots, D]
  size_t c;  // [tiles, slots, vector]
  size_t projected;  // m W_P [panels, slots, panel_width]
  size_t gates;  // per thread [slots, gate_width]; twice where products interleave
  size_t gates_bytes;  // of one thread
  size_t sums;  // per thread, where projections are no fp32: x W + B of one panel [max_unique, panel_width]
  size_t sums_bytes;  // of one thread
  size_t size;

  ScratchLayout(const LstmPlan& plan, int team_size) {
    const LstmShape& s = plan.shape;
    const WeightLayout<Gemm> w(s);
    const int64_t word = sizeof(float);
    const int64_t unique = Gemm::buffer_rows(plan.max_unique), slots = Gemm::buffer_rows(plan.slots);
    x = 0;
    projections = x + left_bytes<Gemm>(unique, s.input);
    h[0] = projections + aligned64(w.tiles * unique * gate_width * int64_t(sizeof(InputValue)));
    h[1] = h[0] + left_bytes<Gemm>(slots, s.projection);
    m = h[1] + left_bytes<Gemm>(slots, s.projection);
    c = m + (w.panels ? left_bytes<Gemm>(slots, s.dim) : 0);
    projected = c + aligned64(w.tiles * slots * Vec::width * word);
    gates = projected + aligned64(w.panels * slots * panel_width * word);
    gates_bytes = aligned64(slots * gate_width * word) * (Gemm::interleaves ? 2 : 1);
    sums = gates + gates_bytes * static_cast<size_t>(team_size);
    sums_bytes = std::is_same_v<InputValue, float> ? 0 : aligned64(unique * panel_width * word);
    size = sums + sums_bytes * static_cast<size_t>(team_size);
  }
};

// Gates 2 * panel and 2 * panel + 1 of a tile, rows from `row` on.
template <class Vec>
PanelSource gate_panel(const LstmShape& s, const float* weight, int64_t row, int64_t tile, int panel) {
  const int64_t cell = tile * Vec::width;
  const int64_t columns = smaller(Vec::width, s.dim - cell);
  const float* start = weight + row * 4 * s.dim + 2 * panel * s.dim + cell;
  return {{start, start + s.dim}, {columns, columns}, 4 * s.dim};
}

template <class Gemm>
void pack_gates(const LstmShape& s, const float* weight, int64_t row, int64_t k, int64_t tiles, char* packed) {
  for (int64_t tile = 0; tile < tiles; ++tile)
    for (int panel = 0; panel < 2; ++panel, packed += panel_bytes<Gemm>(k))
      pack_panel<Gemm>(gate_panel<typename Gemm::Vec>(s, weight, row, tile, panel), k, packed);
}

template <class Vec>
void pack_gate_bias(const LstmShape& s, const float* bias, int64_t tiles, float* packed) {
  for (int64_t tile = 0; tile < tiles; ++tile)
    for (int gate = 0; gate < 4; ++gate)
      for (int64_t lane = 0; lane < Vec::width; ++lane) {
        const int64_t cell = tile * Vec::width + lane;
        *packed++ = cell < s.dim ? bias[gate * s.dim + cell] : 0.0f;
      }
}

template <class Gemm>
void pack_projection(const LstmShape& s, const float* projection, int64_t panels, char* packed) {
  for (int64_t k0 = 0; k0 < s.dim; k0 += Gemm::unit)
    for (int64_t panel = 0; panel < panels; ++panel) {
      const PanelSource source = plain_panel<typename Gemm::Vec>(projection, s.projection, panel);
      Gemm::pack_right(source, k0, smaller(Gemm::unit, s.dim - k0), packed);
      packed += unit_bytes<Gemm>(s.dim, k0 / Gemm::unit);
    }
}

template <class Gemm>
void lstm_pack_direction(const LstmShape& s, const LstmWeights& from, char* packed) {
  const WeightLayout<Gemm> w(s);
  pack_gates<Gemm>(s, from.weight, 0, s.input, w.tiles, packed + w.input);
  pack_gates<Gemm>(s, from.weight, s.input, s.projection, w.tiles, packed + w.recurrent);
  pack_gate_bias<typename Gemm::Vec>(s, from.bias, w.tiles, reinterpret_cast<float*>(packed + w.bias));
  if (w.panels) pack_projection<Gemm>(s, from.projection, w.panels, packed + w.projection);
}

template <class Vec>
int64_t panels_of(int64_t columns) {
  return divided_up(columns, 2 * Vec::width);
}

// What a forward saves for its gradients.
template <class Vec>
struct Saved {
  float* gates;  // [tiles, S, gate_width] after their nonlinearities
  float* cells;  // [tiles, S, vector] after the clip
  float* projected;  // m W_P [panels, S, panel_width] before its clip, nothing without a projection
  float* end;

  Saved(const LstmShape& s, int64_t packed_rows, float* saved) {
    const int64_t tile_floats = divided_up(s.dim, Vec::width) * Vec::width * packed_rows;
    gates = saved;
    cells = gates + 4 * tile_floats;
    projected = cells + tile_floats;
    end = projected + (s.dim == s.projection ? 0 : panels_of<Vec>(s.projection) * 2 * Vec::width * packed_rows);
  }
};

// Offsets in floats into one direction's packed weights, each a right operand [panels, rows, panel_width]:
//   input      [panels of in, gates]   recurrent [panels of P, gates]   projection [panels of D, P padded], or nothing
template <class Vec>
struct BackwardWeights {
  static constexpr int64_t panel_width = 2 * Vec::width;
  int64_t gate_panels, gates, input, recurrent, projection, size;

  explicit BackwardWeights(const LstmShape& s) {
    gate_panels = 2 * divided_up(s.dim, Vec::width);
    gates = gate_panels * panel_width;
    input = 0;
    recurrent = input + panels_of<Vec>(s.input) * gates * panel_width;
    projection = recurrent + panels_of<Vec>(s.projection) * gates * panel_width;
    const int64_t rows = panels_of<Vec>(s.projection) * panel_width;
    size = projection + (s.dim == s.projection ? 0 : panels_of<Vec>(s.dim) * rows * panel_width);
  }
};

// Offsets in floats into one direction's scratch.
template <class Vec>
struct BackwardScratch {
  static constexpr int64_t panel_width = 2 * Vec::width;
  int64_t dz;  // [gate panels, S]: gradients of the gates' arguments
  int64_t dp;  // [panels of P, S]: gradients of m W_P; with no projection, of m
  int64_t m;  // [panels of D, S]
  int64_t dh;  // [panels of P, slots] carried from step to step
  int64_t dc;  // [tiles, slots, vector] likewise
  int64_t c;  // [tiles, slots, vector]: cells before the first step
  int64_t initial_c;  // [tiles, vector]
  int64_t initial_dh;  // [panels of P, panel_width]: gradients of the initial state
  int64_t initial_dc;  // [tiles, vector]
  int64_t left_x;  // left operand of sums over rows [in, unique]
  int64_t left_h;  // [P + 1, S]: h before each packed row, and ones
  int64_t left_dp;  // [P, S]
  int64_t result;  // per thread [result_rows, panel_width]
  int64_t result_floats;
  int64_t size;

  BackwardScratch(const LstmPlan& plan, int team_size) {
    const LstmShape& s = plan.shape;
    const int64_t rows = plan.packed_rows, slots = plan.slots, tiles = divided_up(s.dim, Vec::width);
    const int64_t gate_panels = 2 * tiles, p_panels = panels_of<Vec>(s.projection);
    int64_t end = 0;
    const auto take = [&end](int64_t floats) {
      const int64_t begin = end;
      end += divided_up(floats, 16) * 16;  // cache lines
      return begin;
    };
    dz = take(gate_panels * rows * panel_width);
    dp = take(p_panels * rows * panel_width);
    m = take(panels_of<Vec>(s.dim) * rows * panel_width);
    dh = take(p_panels * slots * panel_width);
    dc = take(tiles * slots * Vec::width);
    c = take(tiles * slots * Vec::width);
    initial_c = take(tiles * Vec::width);
    initial_dh = take(p_panels * panel_width);
    initial_dc = take(tiles * Vec::width);
    left_x = take(plan.max_unique * s.input);
    left_h = take(rows * (s.projection + 1));
    left_dp = take(rows * s.projection);
    const int64_t widest = s.input > s.projection + 1 ? s.input : s.projection + 1;
    result_floats = divided_up((widest > slots ? widest : slots) * panel_width, 16) * 16;
    result = take(result_floats * team_size);
    size = end;
  }
};

// Rows [row, row + count) of W transposed: [panels of count, gates, panel_width]. `packed` is zero before.
template <class Vec>
void pack_gates_transposed(const LstmShape& s, const float* weight, int64_t row, int64_t count, float* packed) {
  constexpr int64_t panel_width = 2 * Vec::width, gate_width = 2 * panel_width;
  const int64_t gates = BackwardWeights<Vec>(s).gates;
  for (int64_t k = 0; k < count; ++k) {
    float* column = packed + k / panel_width * gates * panel_width + k % panel_width;
    for (int64_t gate = 0; gate < 4; ++gate) {
      const float* from = weight + (row + k) * 4 * s.dim + gate * s.dim;
      for (int64_t cell = 0; cell < s.dim; ++cell)
        column[(cell / Vec::width * gate_width + gate * Vec::width + cell % Vec::width) * panel_width] = from[cell];
    }
  }
}

// W_P transposed: [panels of D, P padded, panel_width]. `packed` is zero before.
template <class Vec>
void pack_projection_transposed(const LstmShape& s, const float* projection, float* packed) {
  constexpr int64_t panel_width = 2 * Vec::width;
  const int64_t rows = panels_of<Vec>(s.projection) * panel_width;
  for (int64_t cell = 0; cell < s.dim; ++cell) {
    float* column = packed + cell / panel_width * rows * panel_width + cell % panel_width;
    for (int64_t k = 0; k < s.projection; ++k) column[k * panel_width] = projection[cell * s.projection + k];
  }
}

template <class Vec>
void backward_pack_direction(const LstmShape& s, const LstmWeights& from, char* packed) {
  const BackwardWeights<Vec> w(s);
  float* to = reinterpret_cast<float*>(packed);
  std::memset(to, 0, static_cast<size_t>(w.size) * sizeof(float));
  pack_gates_transposed<Vec>(s, from.weight, 0, s.input, to + w.input);
  pack_gates_transposed<Vec>(s, from.weight, s.input, s.projection, to + w.recurrent);
  if (from.projection) pack_projection_transposed<Vec>(s, from.projection, to + w.projection);
}

}  // namespace elmo_fast::cpu
