// Where everything lies in the packed weights and in the scratch of one direction. Include after packed_product.h.
//
// Cells go in tiles of one vector: four vectors i, j, f, o make a tile's gates, two panels each of two gates.
#pragma once

#include <type_traits>

namespace {

constexpr int64_t gate_width = 4 * Vec::width;

// Offsets in bytes into one direction's packed weights:
//   input      [tiles, 2 panels, in]   recurrent [tiles, 2 panels, P]   bias [tiles, gate_width]
//   projection [units of D, panels of P, unit], or nothing
template <class P>
struct WeightLayout {
  int64_t tiles, panels, input_tile, recurrent_tile;
  size_t input, recurrent, bias, projection, size;

  explicit WeightLayout(const LstmShape& s) {
    const bool projected = s.dim != s.projection;
    tiles = divided_up(s.dim, Vec::width);
    panels = projected ? divided_up(s.projection, panel_width) : 0;
    input_tile = 2 * panel_bytes<P>(s.input);
    recurrent_tile = 2 * panel_bytes<P>(s.projection);
    input = 0;
    recurrent = input + aligned64(tiles * input_tile);
    bias = recurrent + aligned64(tiles * recurrent_tile);
    projection = bias + aligned64(tiles * gate_width * static_cast<int64_t>(sizeof(float)));
    size = projection + aligned64(panels * panel_bytes<P>(s.dim));
  }
};

// Offsets in bytes into one direction's scratch. Row counts are what products may touch: P::buffer_rows.
template <class P>
struct ScratchLayout {
  size_t x;            // left operand [max_distinct, in]
  size_t ahead;        // x W + B of the chunk's rows, P::Ahead [tiles, max_distinct, gate_width]
  size_t h[2];         // left operands [lanes, P] of this step and the next
  size_t m;            // left operand [lanes, D]
  size_t c;            // [tiles, lanes, vector]
  size_t projected;    // m W_P [panels, lanes, panel_width]
  size_t gates;        // per thread [lanes, gate_width]; twice where products interleave
  size_t gates_bytes;  // of one thread
  size_t sums;         // per thread, where ahead is no fp32: x W + B of one panel [max_distinct, panel_width]
  size_t sums_bytes;   // of one thread
  size_t size;

  ScratchLayout(const LstmPlan& plan, int team_size) {
    const LstmShape& s = plan.shape;
    const WeightLayout<P> w(s);
    const int64_t word = sizeof(float);
    const int64_t distinct = P::buffer_rows(plan.max_distinct), lanes = P::buffer_rows(plan.lanes);
    x = 0;
    ahead = x + left_bytes<P>(distinct, s.input);
    h[0] = ahead + aligned64(w.tiles * distinct * gate_width * int64_t(sizeof(typename P::Ahead::Value)));
    h[1] = h[0] + left_bytes<P>(lanes, s.projection);
    m = h[1] + left_bytes<P>(lanes, s.projection);
    c = m + (w.panels ? left_bytes<P>(lanes, s.dim) : 0);
    projected = c + aligned64(w.tiles * lanes * Vec::width * word);
    gates = projected + aligned64(w.panels * lanes * panel_width * word);
    gates_bytes = aligned64(lanes * gate_width * word) * (P::interleaves ? 2 : 1);
    sums = gates + gates_bytes * static_cast<size_t>(team_size);
    sums_bytes = std::is_same_v<typename P::Ahead, FloatRows> ? 0 : aligned64(distinct * panel_width * word);
    size = sums + sums_bytes * static_cast<size_t>(team_size);
  }
};

// Gates 2 * panel and 2 * panel + 1 of a tile, rows from `row` on.
inline PanelSource gate_panel(const LstmShape& s, const float* weight, int64_t row, int64_t tile, int panel) {
  const int64_t cell = tile * Vec::width;
  const int64_t columns = smaller(Vec::width, s.dim - cell);
  const float* start = weight + row * 4 * s.dim + 2 * panel * s.dim + cell;
  return {{start, start + s.dim}, {columns, columns}, 4 * s.dim};
}

// Columns [panel * panel_width, ...) of a row-major [k, columns] matrix.
inline PanelSource plain_panel(const float* weight, int64_t columns, int64_t panel) {
  const int64_t first = panel * panel_width;
  const int64_t second = first + Vec::width < columns ? first + Vec::width : columns;
  return {{weight + first, weight + second},
          {smaller(Vec::width, columns - first), smaller(Vec::width, columns - second)},
          columns};
}

template <class P>
void pack_gates(const LstmShape& s, const float* weight, int64_t row, int64_t k, int64_t tiles, char* packed) {
  for (int64_t tile = 0; tile < tiles; ++tile)
    for (int panel = 0; panel < 2; ++panel, packed += panel_bytes<P>(k))
      pack_panel<P>(gate_panel(s, weight, row, tile, panel), k, packed);
}

inline void pack_gate_bias(const LstmShape& s, const float* bias, int64_t tiles, float* packed) {
  for (int64_t tile = 0; tile < tiles; ++tile)
    for (int gate = 0; gate < 4; ++gate)
      for (int64_t lane = 0; lane < Vec::width; ++lane) {
        const int64_t cell = tile * Vec::width + lane;
        *packed++ = cell < s.dim ? bias[gate * s.dim + cell] : 0.0f;
      }
}

template <class P>
void pack_projection(const LstmShape& s, const float* projection, int64_t panels, char* packed) {
  for (int64_t k0 = 0; k0 < s.dim; k0 += P::unit)
    for (int64_t panel = 0; panel < panels; ++panel) {
      P::pack_right(plain_panel(projection, s.projection, panel), k0, smaller(P::unit, s.dim - k0), packed);
      packed += unit_bytes<P>(s.dim, k0 / P::unit);
    }
}

template <class P>
size_t lstm_packed_bytes(const LstmShape& s) {
  return WeightLayout<P>(s).size;
}

template <class P>
void lstm_pack_direction(const LstmShape& s, const LstmWeights& from, char* packed) {
  const WeightLayout<P> w(s);
  pack_gates<P>(s, from.weight, 0, s.input, w.tiles, packed + w.input);
  pack_gates<P>(s, from.weight, s.input, s.projection, w.tiles, packed + w.recurrent);
  pack_gate_bias(s, from.bias, w.tiles, reinterpret_cast<float*>(packed + w.bias));
  if (w.panels) pack_projection<P>(s, from.projection, w.panels, packed + w.projection);
}

template <class P>
size_t lstm_scratch_bytes(const LstmPlan& plan, int team_size) {
  return ScratchLayout<P>(plan, team_size).size;
}

}  // namespace
