// What the phases of a step (gate_phases.h, projection_phases.h) work on, for a block of `warps` warps.
//
// `Block` is the machine: DeviceBlock (device_block.h) runs one thread of it, the tests' HostBlock all of them, so
// everything between two `sync` is written for one thread and what a thread keeps in between lives in a `PerThread`.
//
// No product depends on another lane's: tiles of lanes may be cut as they like. Sums run in the order of
// GateShare, TileShare and `sum_partials`, which know the shape and the device, not the lanes.
#pragma once

#include <cmath>

#include "layout.h"
#include "operand.h"

namespace elmo_fast {
namespace cuda {

// One direction of one call, as every phase reads it. Pointers to [.., 2P] and [.., 2D] begin at the direction's half.
struct Direction {
  Layout layout;
  const char* packed;        // [units] records
  const float* products;     // [rows, 4D]
  const int32_t* rows;       // [S] or null
  const uint8_t* reset;      // [S] or null
  const float* reset_h;      // [P] or null
  const float* reset_c;      // [D] or null
  float* output;             // [S, 2P]
  const float* h_first;      // [lanes, 2P]
  const float* c_first;      // [lanes, 2D]
  float* h;                  // [lanes, 2P]
  float* c;                  // [lanes, 2D]
  uint16_t* h_operand[2];    // [lanes, h_width] h of even and odd steps, padding zero
  float* partials;           // [parts, lanes, h_width]
  int lanes;
  float cell_clip, proj_clip;
};

// A step and the lanes that a block works on.
struct Moment {
  int step;        // its parity chooses the h operand
  int begin;       // first step-row
  int live;        // lanes
  int first_lane;  // of the block's tile
  bool first;      // of the call: the state is h_first, c_first

  ELMO_HD int lanes(int most) const { return larger(0, smaller(live - first_lane, most)); }
};

struct TileA { uint32_t r[4]; };  // registers of one thread
struct TileB { uint32_t r[2]; };
struct TileC { float r[4]; };

template <int NT>
struct GateSums { TileC of[2][NT]; };  // (i, j), (f, o) of cell lane / 4, lanes 2 * (lane % 4) and the next

// Weights on their way: the next `depth` steps along K.
template <int depth>
struct Ahead { TileA of[depth][2]; };

// The cells a block owns and where their state lies: c[lane * stride + cell], cells counted from the block's first.
struct Cells {
  int first_unit, units;   // what there is of units_per_block
  const float* c_before;
  int before_stride;
  float* c;
  int stride;
};

// Units that there are of `units_per_cluster` from the first on.
ELMO_HD int cluster_units(const Layout& layout, int first, int units_per_cluster) {
  return larger(0, smaller(units_per_cluster, layout.units() - first));
}

ELMO_HD float clipped(float x, float limit) { return x > limit ? limit : (x < -limit ? -limit : x); }  // NaN passes
ELMO_HD float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

ELMO_HD bool is_reset(const Direction& k, const Moment& now, int lane) {
  return k.reset && k.reset[now.begin + lane] != 0;
}

// The right operand of 16 columns and 8 lanes from shared memory.
ELMO_HD TileB right_tile(const uint16_t* operand, int stride, int column, int n, int lane) {
  struct alignas(8) Pair { uint32_t word[2]; };
  const int at = (n * tile_lanes + lane / 4) * stride + column + lane % 4 * 4;
  const Pair pair = *reinterpret_cast<const Pair*>(operand + at);
  return {{pair.word[0], pair.word[1]}};
}

// A new h of one lane: to the state, the output and the next step's operand.
template <class O>
ELMO_HD void emit(const Direction& k, const Moment& now, int lane, int column, float h) {
  const size_t width = 2 * size_t(k.layout.projection);
  k.h[size_t(lane) * width + column] = h;
  k.output[size_t(now.begin + lane) * width + column] = h;
  k.h_operand[(now.step + 1) & 1][size_t(lane) * size_t(k.layout.h_width()) + column] = O::from(h);
}

}  // namespace cuda
}  // namespace elmo_fast
