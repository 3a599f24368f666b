// Where everything lies for the gradients of one direction: what the forward kept, packed weights, scratch. Include
// after lstm_layout.h.
//
// A paneled matrix [panels, rows, panel_width] holds panel_width columns of all its rows together, the unused columns
// of the last panel zero. A panel is a right operand as it stands, for sums over rows; its rows serve as left operands.
// Gates lie in the order of the tiles: a tile makes two panels, (i, j) and (f, o). Cells lie in panels of two tiles.
#pragma once

namespace {

inline int64_t panels_of(int64_t columns) { return divided_up(columns, panel_width); }

// Kept: gates [tiles, S, gate_width] after their nonlinearities, cells [tiles, S, vector] after the clip, and
// m W_P [panels, S, panel_width] before its clip, if there is a projection.
inline LstmKept lstm_kept(const LstmShape& s, int64_t step_rows, float* saved) {
  const int64_t tiles = divided_up(s.dim, Vec::width);
  float* cells = saved + tiles * step_rows * gate_width;
  return {saved, cells, s.dim == s.projection ? nullptr : cells + tiles * step_rows * Vec::width};
}

inline size_t lstm_saved_row_bytes(const LstmShape& s) {
  const int64_t projected = s.dim == s.projection ? 0 : panels_of(s.projection) * panel_width;
  const int64_t floats = divided_up(s.dim, Vec::width) * (gate_width + Vec::width) + projected;
  return static_cast<size_t>(floats) * sizeof(float);
}

// Offsets in floats into one direction's packed weights, each a right operand [panels, rows, panel_width]:
//   input      [panels of in, gates]   recurrent [panels of P, gates]   projection [panels of D, P padded], or nothing
struct BackwardWeights {
  int64_t gate_panels, gates, input, recurrent, projection, size;

  explicit BackwardWeights(const LstmShape& s) {
    gate_panels = 2 * divided_up(s.dim, Vec::width);
    gates = gate_panels * panel_width;
    input = 0;
    recurrent = input + panels_of(s.input) * gates * panel_width;
    projection = recurrent + panels_of(s.projection) * gates * panel_width;
    const int64_t rows = panels_of(s.projection) * panel_width;
    size = projection + (s.dim == s.projection ? 0 : panels_of(s.dim) * rows * panel_width);
  }
};

// Offsets in floats into one direction's scratch.
struct BackwardScratch {
  int64_t dz;         // [gate panels, S]: gradients of the gates' arguments
  int64_t dp;         // [panels of P, S]: gradients of m W_P; with no projection, of m
  int64_t m;          // [panels of D, S]
  int64_t dh;         // [panels of P, lanes] carried from step to step
  int64_t dc;         // [tiles, lanes, vector] likewise
  int64_t c;          // [tiles, lanes, vector]: cells before the first step
  int64_t reset_c;    // [tiles, vector]
  int64_t reset_dh;   // [panels of P, panel_width]: gradients of the reset state
  int64_t reset_dc;   // [tiles, vector]
  int64_t left_x;     // left operand of sums over rows [in, distinct]
  int64_t left_h;     // [P + 1, S]: h before each step-row, and ones
  int64_t left_dp;    // [P, S]
  int64_t result;     // per thread [result_rows, panel_width]
  int64_t result_floats;
  int64_t size;

  BackwardScratch(const LstmPlan& plan, int team_size) {
    const LstmShape& s = plan.shape;
    const int64_t rows = plan.step_rows, lanes = plan.lanes, tiles = divided_up(s.dim, Vec::width);
    const int64_t gate_panels = 2 * tiles, p_panels = panels_of(s.projection);
    int64_t end = 0;
    const auto take = [&end](int64_t floats) {
      const int64_t begin = end;
      end += divided_up(floats, 16) * 16;  // cache lines
      return begin;
    };
    dz = take(gate_panels * rows * panel_width);
    dp = take(p_panels * rows * panel_width);
    m = take(panels_of(s.dim) * rows * panel_width);
    dh = take(p_panels * lanes * panel_width);
    dc = take(tiles * lanes * Vec::width);
    c = take(tiles * lanes * Vec::width);
    reset_c = take(tiles * Vec::width);
    reset_dh = take(p_panels * panel_width);
    reset_dc = take(tiles * Vec::width);
    left_x = take(plan.max_distinct * s.input);
    left_h = take(rows * (s.projection + 1));
    left_dp = take(rows * s.projection);
    const int64_t widest = s.input > s.projection + 1 ? s.input : s.projection + 1;
    result_floats = divided_up((widest > lanes ? widest : lanes) * panel_width, 16) * 16;
    result = take(result_floats * team_size);
    size = end;
  }
};

inline size_t backward_scratch_bytes(const LstmPlan& plan, int team_size) {
  return static_cast<size_t>(BackwardScratch(plan, team_size).size) * sizeof(float);
}

inline size_t backward_packed_bytes(const LstmShape& s) {
  return static_cast<size_t>(BackwardWeights(s).size) * sizeof(float);
}

// Where the values of one gate in one tile begin among the gates.
inline int64_t gate_place(int64_t tile, int64_t gate) { return tile * gate_width + gate * Vec::width; }

// Rows [row, row + count) of W transposed: [panels of count, gates, panel_width]. `packed` is zero before.
inline void pack_gates_transposed(const LstmShape& s, const float* weight, int64_t row, int64_t count, float* packed) {
  const int64_t gates = BackwardWeights(s).gates;
  for (int64_t k = 0; k < count; ++k) {
    float* column = packed + k / panel_width * gates * panel_width + k % panel_width;
    for (int64_t gate = 0; gate < 4; ++gate) {
      const float* from = weight + (row + k) * 4 * s.dim + gate * s.dim;
      for (int64_t cell = 0; cell < s.dim; ++cell)
        column[(gate_place(cell / Vec::width, gate) + cell % Vec::width) * panel_width] = from[cell];
    }
  }
}

// W_P transposed: [panels of D, P padded, panel_width]. `packed` is zero before.
inline void pack_projection_transposed(const LstmShape& s, const float* projection, float* packed) {
  const int64_t rows = panels_of(s.projection) * panel_width;
  for (int64_t cell = 0; cell < s.dim; ++cell) {
    float* column = packed + cell / panel_width * rows * panel_width + cell % panel_width;
    for (int64_t k = 0; k < s.projection; ++k) column[k * panel_width] = projection[cell * s.projection + k];
  }
}

inline void backward_pack_direction(const LstmShape& s, const LstmWeights& from, char* packed) {
  const BackwardWeights w(s);
  float* to = reinterpret_cast<float*>(packed);
  std::memset(to, 0, backward_packed_bytes(s));
  pack_gates_transposed(s, from.weight, 0, s.input, to + w.input);
  pack_gates_transposed(s, from.weight, s.input, s.projection, to + w.recurrent);
  if (from.projection) pack_projection_transposed(s, from.projection, to + w.projection);
}

}  // namespace
