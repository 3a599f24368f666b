// Where weights lie, packed and in shared memory.
//
// Products run as mma m16n8k16 with weights as the left operand A: gate or projection rows are M, lanes are N. Cells
// go in units of 16, two groups of 8. A group's 32 gate rows make two A tiles, (i, j) and (f, o): one thread's sums
// are then all four gates of one cell for two lanes. A tile is stored as a warp loads it, 16 bytes a thread.
//
// Inside 16 columns the order is the packing's own: thread `quarter` (lane % 4) multiplies columns 4 * quarter to
// 4 * quarter + 3, so that its part of the right operand is 8 bytes in a row.
#pragma once

#include "portable.h"

namespace elmo_fast {
namespace cuda {

constexpr int warps = 8;
constexpr int threads = 32 * warps;
constexpr int unit_cells = 16;
constexpr int group_cells = 8;
constexpr int tile_lanes = 8;
constexpr int tile_bytes = 512;           // 32 threads of 4 registers
constexpr int most_units = warps / 2;     // a warp has one group
constexpr int bias_bytes = 4 * 16 * 4;

// One direction's record of a unit: gates [2 groups, k_steps, 2 tiles], projection [p_tiles] whose 16 columns are
// the unit's cells, biases [2 groups, 4 gates, 8 cells].
struct Layout {
  int dim, projection;

  ELMO_HD bool projected() const { return dim != projection; }
  ELMO_HD int units() const { return divided_up(dim, unit_cells); }
  ELMO_HD int k_steps() const { return divided_up(projection, 16); }
  ELMO_HD int p_tiles() const { return projected() ? k_steps() : 0; }
  ELMO_HD int h_width() const { return 16 * k_steps(); }  // columns of h with padding; rows of the projection too
  ELMO_HD int gate_offset(int group, int k) const { return (group * k_steps() + k) * 2 * tile_bytes; }
  ELMO_HD int projection_offset(int tile) const { return 4 * k_steps() * tile_bytes + tile * tile_bytes; }
  ELMO_HD int bias_offset() const { return projection_offset(p_tiles()); }
  ELMO_HD int unit_bytes() const { return bias_offset() + bias_bytes; }
  ELMO_HD size_t direction_bytes() const { return size_t(units()) * size_t(unit_bytes()); }
};

// Halves between two lanes of a right operand in shared memory: a warp's 8-byte loads then hit each bank once.
constexpr ELMO_HD int padded_columns(int columns) { return divided_up(columns, 64) * 64 + 16; }

// Row and first column of register `r`, which holds two columns, of thread `lane` in an A tile.
ELMO_HD int tile_row(int lane, int r) { return lane / 4 + r % 2 * 8; }
ELMO_HD int tile_column(int lane, int r) { return lane % 4 * 4 + r / 2 * 2; }

// How a block's warps share its gates: a group each, and where groups are few, its columns in parts.
struct GateShare {
  int groups, parts;

  explicit ELMO_HD GateShare(int units_per_block) : groups(2 * units_per_block), parts(warps / groups) {}
  ELMO_HD int group(int warp) const { return warp % groups; }
  ELMO_HD int part(int warp) const { return warp / groups; }
  ELMO_HD bool busy(int warp) const { return part(warp) < parts; }
};

// The same for the tiles of a projection.
struct TileShare {
  int tiles, parts;

  explicit ELMO_HD TileShare(int tile_count) : tiles(tile_count), parts(larger(1, warps / larger(1, tile_count))) {}
};

// Offsets in bytes into a block's dynamic shared memory. `cells` is what m holds: the block's, `gathered` the
// cluster's, which take the place of h.
struct SharedLayout {
  int h_stride, m_stride, gathered_stride, c_stride;
  size_t weights, h, m, c, parts, size;

  ELMO_HD SharedLayout(const Layout& layout, int units_per_block, int cluster, int lane_tiles, bool resident) {
    const int lanes = lane_tiles * tile_lanes, cells = units_per_block * unit_cells;
    h_stride = padded_columns(layout.h_width());
    m_stride = padded_columns(cells);
    gathered_stride = padded_columns(cluster * cells);
    c_stride = cells + 4;  // lanes 2, 4, 6 begin 8, 16, 24 banks on
    weights = 0;
    h = resident ? size_t(units_per_block) * size_t(layout.unit_bytes()) : 0;
    const int widest = cluster > 1 ? larger(h_stride, gathered_stride) : h_stride;
    m = h + size_t(lanes) * size_t(widest) * 2;
    c = m + size_t(lanes) * size_t(m_stride) * 2;
    parts = c + (resident ? size_t(lanes) * size_t(c_stride) * 4 : 0);
    const GateShare gates(units_per_block);
    const TileShare tiles(divided_up(layout.p_tiles(), cluster));
    const int gate_parts = (gates.parts - 1) * gates.groups * 2, tile_parts = (tiles.parts - 1) * tiles.tiles;
    const size_t exchanged = size_t(larger(gate_parts, cluster > 1 ? tile_parts : 0)) * 32 * 16 * size_t(lane_tiles);
    const size_t sums = threads * sizeof(float);
    size = parts + (exchanged > sums ? exchanged : sums) + 16;  // the last 16 bytes: the barrier's verdict
  }
};

}  // namespace cuda
}  // namespace elmo_fast
