// Where weights and exchanged values lie, packed, in shared memory and in scratch. Read by nvcc and the host compiler.
//
// Products run as mma m16n8k16 with weights as the left operand A: gates or projected values are rows, slots are
// columns. Cells come in units of 16, two groups of 8. A group's 32 gate rows are two A tiles, (i, j) and (f, o), so
// that one thread's sums are all four gates of one cell for two slots. A tile is stored as a warp loads it, 16 bytes a
// thread. Within 16 columns the order is the packing's own: thread `lane % 4` multiplies columns 4 (lane % 4) to
// 4 (lane % 4) + 3, so that its part of the right operand is 8 consecutive bytes.
#pragma once

#include <cstddef>
#include <cstdint>

#ifdef __CUDACC__
#define ELMO_HD __host__ __device__ __forceinline__
#else
#define ELMO_HD inline
#endif

namespace elmo_fast {
namespace cuda {

constexpr int unit_cells = 16;
constexpr int group_cells = 8;
constexpr int tile_slots = 8;
constexpr int most_slots = 64;
constexpr int tile_bytes = 512;                        // 32 threads, 4 registers
constexpr int bias_bytes = 4 * unit_cells * 4;
constexpr int most_cluster = 8;
constexpr int most_units = 3;                          // of a block and direction: 2 warps each
constexpr int staged_steps = 8;                        // k-steps of h that are copied at once

// Parts of h in shared memory: all side by side for few slots, whose latency counts; for many two that take turns.
constexpr ELMO_HD bool stages_take_turns(int row_tiles) { return row_tiles > 2; }

constexpr ELMO_HD int divided_up(int a, int b) { return (a + b - 1) / b; }
constexpr ELMO_HD int smaller(int a, int b) { return a < b ? a : b; }
constexpr ELMO_HD int larger(int a, int b) { return a > b ? a : b; }

// One direction: records of units, gates [2 groups, k_steps, 2 tiles] and biases [2 groups, 4 gates, 8 cells]; then the
// projection [p_tiles, units], a tile of 16 projected values by a unit's cells.
struct Layout {
  int dim, projection;

  ELMO_HD int units() const { return divided_up(dim, unit_cells); }
  ELMO_HD int k_steps() const { return divided_up(projection, 16); }
  ELMO_HD int p_tiles() const { return k_steps(); }
  ELMO_HD int h_width() const { return 16 * k_steps(); }  // columns of h with padding
  ELMO_HD int gate_offset(int group, int k) const { return (group * k_steps() + k) * 2 * tile_bytes; }
  ELMO_HD int bias_offset() const { return 4 * k_steps() * tile_bytes; }
  ELMO_HD int unit_bytes() const { return bias_offset() + bias_bytes; }
  ELMO_HD size_t projection_offset(int tile, int unit) const {
    return size_t(units()) * size_t(unit_bytes()) + (size_t(tile) * size_t(units()) + size_t(unit)) * tile_bytes;
  }
  ELMO_HD size_t direction_bytes() const { return projection_offset(p_tiles(), 0); }
};

// 16-bit values between two slots of a right operand in shared memory: a warp's 8-byte loads then meet each bank once.
constexpr ELMO_HD int padded_columns(int columns) { return divided_up(columns, 64) * 64 + 16; }

// Offsets in bytes into one team's part of the dynamic shared memory. The gathered m takes the place of h.
struct SharedLayout {
  int h_stride, m_stride, gathered_stride;  // 16-bit values between two slots
  int gates, projection, h, m, slots, flags, team;

  SharedLayout() = default;
  SharedLayout(const Layout& layout, int units_per_block, int cluster, int row_tiles, int shared_steps,
               bool projection_resident) {
    const int rows = row_tiles * tile_slots, cells = units_per_block * unit_cells;
    const int tiles = divided_up(layout.p_tiles(), cluster), stages = stages_take_turns(row_tiles) ? 2 : 1;
    h_stride = padded_columns(16 * (stages == 1 ? layout.k_steps() : staged_steps));
    m_stride = padded_columns(cells);
    gathered_stride = cluster > 1 ? padded_columns(cluster * cells) : 0;
    gates = 0;
    projection = 2 * units_per_block * shared_steps * 2 * tile_bytes;
    h = projection + (projection_resident ? tiles * cluster * units_per_block * tile_bytes : 0);
    m = h + larger(stages * rows * h_stride, rows * gathered_stride) * 2;
    slots = m + rows * m_stride * 2;
    flags = slots + 3 * most_slots * 4;
    team = flags + (most_cluster + 1) * 4 + 12;  // a flag for each block of the cluster, and the barrier's verdict
  }
};

// A grid barrier: a count that only grows, on a cache line of its own.
struct Barrier {
  uint32_t count;
  uint32_t unused[31];
};

// Offsets in bytes into a call's scratch. The barriers and the abort flag are zeroed before a launch.
struct Scratch {
  size_t barriers, abort, zeroed, operands, partials, size;

  Scratch(const Layout& layout, int slots, int clusters) {
    const size_t values = 2 * size_t(slots) * size_t(layout.h_width());
    barriers = 0;
    abort = 2 * sizeof(Barrier);
    zeroed = abort + sizeof(Barrier);
    operands = (zeroed + 255) / 256 * 256;                            // [2 parities, 2, slots, h_width] 16-bit
    partials = operands + (2 * values * 2 + 255) / 256 * 256;         // [2, clusters, slots, h_width] fp32
    size = partials + values * size_t(clusters) * 4;
  }
};

// An instance of the persistent kernel. `most_threads` leaves a thread 255 registers (256 threads) or 168 (384). Beside
// the sums of `row_tiles` tiles of slots they hold `register_steps` k-steps of weights, 8 registers each, and `depth`
// more on their way from L2.
struct Instance {
  int most_threads, row_tiles, register_steps, depth;
};

constexpr Instance instances[] = {{256, 1, 16, 2}, {256, 2, 16, 2}, {256, 4, 7, 4}, {256, 8, 1, 4},
                                  {384, 1, 0, 6},  {384, 2, 0, 6},  {384, 4, 0, 3}};
constexpr int instance_count = sizeof(instances) / sizeof(instances[0]);

}  // namespace cuda
}  // namespace elmo_fast
