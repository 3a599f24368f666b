// How a layer is partitioned over a device, and the layouts of packed weights, shared memory and scratch. Compiled by
// nvcc and the host compiler, so without CUDA.
//
// Products run as mma m16n8k16 with weights as the left operand A: gates or projected values are rows, slots are
// columns. Cells come in units of 16, two groups of 8. A group's 32 gate rows are two A tiles, (i, j) and (f, o), so
// that a thread sums all four gates of a cell for two slots. A tile is stored in the order in which a warp loads it, 16
// bytes per thread. Packing permutes the columns within 16: thread `lane % 4` multiplies columns 4 (lane % 4) to
// 4 (lane % 4) + 3, so that its part of the right operand is 8 consecutive bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#ifdef __CUDACC__
#define ELMO_HD __host__ __device__ __forceinline__
#else
#define ELMO_HD inline
#endif

namespace elmo_fast::cuda {

constexpr int unit_cells = 16;
constexpr int group_cells = 8;
constexpr int tile_slots = 8;
constexpr int most_slots = 64;
constexpr int tile_bytes = 512;  // 32 threads, 4 registers
constexpr int bias_bytes = 4 * unit_cells * 4;
constexpr int most_cluster = 8;
constexpr int most_units = 3;  // per block and direction, with 2 warps each
constexpr int part_steps = 8;  // k-steps of a part of h, of two that alternate
constexpr int part_columns = 16 * part_steps;

// Parts of h in shared memory: a single one for few slots (latency-bound), two that alternate for many.
constexpr ELMO_HD bool double_buffered(int row_tiles) { return row_tiles > 2; }

constexpr ELMO_HD int divided_up(int a, int b) { return (a + b - 1) / b; }
constexpr ELMO_HD int smaller(int a, int b) { return a < b ? a : b; }
constexpr ELMO_HD int larger(int a, int b) { return a > b ? a : b; }

// Packed weights of one direction: a record per unit, with gates [2 groups, k_steps, 2 tiles] and biases [2 groups, 4
// gates, 8 cells]; then the projection [p_tiles, units] in tiles of 16 projected values by the cells of a unit.
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

// Stride of the slots of a right operand in shared memory, in 16-bit values: a warp's 8-byte loads meet each bank once.
constexpr ELMO_HD int padded_columns(int columns) { return divided_up(columns, 64) * 64 + 16; }

// An instance of the persistent kernel. A thread has 255 registers if `most_threads` is 256, and 168 if it is 384. They
// hold the sums of `row_tiles` tiles of slots, `register_steps` k-steps of resident weights, 8 registers each, and
// `depth` k-steps that are being loaded from L2.
struct Instance {
  int most_threads, row_tiles, register_steps, depth;
};

constexpr Instance instances[] = {{256, 1, 16, 2}, {256, 2, 16, 2}, {256, 4, 7, 4}, {256, 8, 1, 4},
                                  {384, 1, 0, 6},  {384, 2, 0, 6},  {384, 4, 0, 3}};
constexpr int instance_count = sizeof(instances) / sizeof(instances[0]);

struct Device {
  int32_t processors;  // streaming multiprocessors
  int64_t shared;  // most bytes of shared memory of a block
  int32_t clusters[3];  // most clusters of 8, 4 and 2 blocks that run at once; 0: no clusters
};

// `reason` is null, or says why the layer cannot run.
struct Plan {
  Layout layout;
  int32_t units_per_block;  // of 16 cells, of each direction
  int32_t blocks;
  int32_t cluster;  // blocks that exchange m through distributed shared memory; divides `blocks`
  int32_t instance;  // of the kernel, an index into `instances`
  int32_t threads;  // of a block
  int32_t shared_steps;  // k-steps after those in registers whose weights stay in shared memory; the rest is streamed
  bool projection_resident;  // whether W_P stays in shared memory
  int64_t shared_bytes;  // of dynamic shared memory of a block
  int64_t scratch_bytes;  // of device memory for a call
  int64_t resident_bytes;  // of weights, both directions
  int64_t streamed_bytes;  // of weights, both directions, in a step
  const char* reason;
};

// Offsets in bytes into one team's part of the dynamic shared memory, which begins with the gates' weights. The
// gathered m overwrites h.
struct SharedLayout {
  int h_stride, m_stride, gathered_stride;  // 16-bit values between two slots
  int h_parts;  // of which `h` has one or two; in device memory as well
  int projection, h, m, slots, barriers, team;

  explicit SharedLayout(const Plan& plan) {
    const int row_tiles = instances[plan.instance].row_tiles, stages = double_buffered(row_tiles) ? 2 : 1;
    const int rows = row_tiles * tile_slots, cells = plan.units_per_block * unit_cells;
    const int tiles = divided_up(plan.layout.p_tiles(), plan.cluster);
    h_parts = stages == 1 ? 1 : divided_up(plan.layout.k_steps(), part_steps);
    h_stride = padded_columns(stages == 1 ? plan.layout.h_width() : part_columns);
    m_stride = padded_columns(cells);
    gathered_stride = plan.cluster > 1 ? padded_columns(plan.cluster * cells) : 0;
    projection = 2 * plan.units_per_block * plan.shared_steps * 2 * tile_bytes;
    h = projection + (plan.projection_resident ? tiles * plan.cluster * plan.units_per_block * tile_bytes : 0);
    m = h + larger(stages * rows * h_stride, rows * gathered_stride) * 2;
    slots = m + rows * m_stride * 2;
    barriers = slots + 3 * most_slots * 4;
    team = barriers + 6 * 8;  // five barriers, to a multiple of 16
  }
};

// A grid barrier: a count that is only incremented, on its own cache line.
struct Barrier {
  uint32_t count;
  uint32_t unused[31];
};

// Offsets in bytes into a call's scratch. It begins with a barrier for each direction and the operands with their
// padding, all zeroed before a launch.
struct Scratch {
  size_t operands, partials, size;

  Scratch(const Plan& plan, int slots) {
    const SharedLayout at(plan);
    const size_t rows = 2 * size_t(slots);
    operands = 2 * sizeof(Barrier);  // [2 parities, 2, h_parts, slots, h_stride] 16-bit
    partials =
        operands + 2 * rows * size_t(at.h_parts) * size_t(at.h_stride) * 2;  // [2, clusters, slots, h_width] fp32
    size = partials + rows * size_t(plan.layout.h_width()) * size_t(plan.blocks / plan.cluster) * 4;
  }
};

// Selects the largest cluster size that does not give a block more cells than it would have without clusters.
inline void spread_cells(Plan& plan, const Device& device) {
  const int units = plan.layout.units(), fewest = divided_up(units, device.processors);
  for (int j = 0; j < 4; ++j) {
    const int cluster = most_cluster >> j;
    const int blocks =
        cluster == 1 ? device.processors : smaller(device.processors / cluster, device.clusters[j]) * cluster;
    if (blocks == 0 || divided_up(units, blocks) > fewest) continue;
    if (cluster > 1 && (cluster > plan.layout.p_tiles() || cluster > units)) continue;
    plan.cluster = cluster;
    plan.units_per_block = fewest;
    plan.blocks = divided_up(divided_up(units, fewest), cluster) * cluster;
    return;
  }
}

// Keeps W_P in shared memory if it fits, then as many k-steps of the gates as fit. False: a block does not fit even
// without resident weights.
inline bool keep_weights(Plan& plan, const Device& device) {
  const auto left = [&] { return device.shared - 2 * int64_t(SharedLayout(plan).team); };
  if (left() < 0) return false;
  plan.projection_resident = true;
  if (left() < 0) plan.projection_resident = false;
  const int k_steps = plan.layout.k_steps(), units = plan.layout.units();
  const int in_registers = smaller(instances[plan.instance].register_steps, k_steps);
  plan.shared_steps = smaller(k_steps - in_registers, int(left() / (2 * 2 * plan.units_per_block * 2 * tile_bytes)));
  plan.shared_bytes = device.shared - left();
  const int64_t step_bytes = 2 * int64_t(units) * 4 * tile_bytes;
  const int64_t projection = 2 * int64_t(plan.layout.p_tiles()) * units * tile_bytes;
  plan.streamed_bytes =
      (k_steps - in_registers - plan.shared_steps) * step_bytes + (plan.projection_resident ? 0 : projection);
  plan.resident_bytes = k_steps * step_bytes + projection - plan.streamed_bytes;
  return true;
}

// Fills the plan; returns null, or why the layer cannot run.
inline const char* fill(Plan& plan, const Device& device, int slots) {
  if (plan.layout.dim == plan.layout.projection)
    return "the layer has no projection, or one to as many values as there are cells";
  spread_cells(plan, device);
  if (plan.units_per_block > most_units)
    return "the cells do not fit on the device's multiprocessors, 48 of each direction on one";
  plan.threads = plan.units_per_block * 2 * 32 * 2;
  const auto holds = [&](const Instance& of) {
    return plan.threads <= of.most_threads && slots <= of.row_tiles * tile_slots;
  };
  while (plan.instance < instance_count && !holds(instances[plan.instance])) ++plan.instance;
  if (plan.instance == instance_count)
    return "above 32 slots a multiprocessor has registers for 32 cells of each direction";
  if (!keep_weights(plan, device)) return "a block needs more shared memory than the device has";
  plan.scratch_bytes = int64_t(Scratch(plan, slots).size);
  return nullptr;
}

inline Plan plan_persistent(int dim, int projection, const Device& device, int slots) {
  if (dim <= 0 || projection <= 0 || dim > (1 << 20) || projection > (1 << 16))
    throw std::invalid_argument("shape: expected a dim of 1 to 2^20 and a projection of 1 to 2^16");
  if (device.processors < 1 || device.shared < 0) throw std::invalid_argument("device: expected 1 or more processors");
  if (slots < 1 || slots > most_slots)
    throw std::invalid_argument("slots: expected 1 to " + std::to_string(most_slots) + ", got " +
                                std::to_string(slots));
  Plan plan = {};
  plan.layout = {dim, projection};
  plan.reason = fill(plan, device, slots);
  return plan;
}

}  // namespace elmo_fast::cuda
