// How a layer is spread over a device, and the packing of its weights. No CUDA in here.
#include <cstring>
#include <stdexcept>
#include <string>

#include "../projected_lstm_cuda.h"
#include "instances.h"
#include "layout.h"
#include "operand.h"

namespace elmo_fast {
namespace cuda {
namespace {

void check_shape(const Shape& s) {
  if (s.dim <= 0 || s.projection <= 0 || s.dim > (1 << 20) || s.projection > (1 << 16))
    throw std::invalid_argument("shape: expected a dim of 1 to 2^20 and a projection of 1 to 2^16");
}

void check_device(const Device& device, int slots) {
  if (device.processors < 1 || device.shared < 0) throw std::invalid_argument("device: expected 1 or more processors");
  if (slots < 1 || slots > most_slots)
    throw std::invalid_argument("slots: expected 1 to " + std::to_string(most_slots) + ", got " +
                                std::to_string(slots));
}

int blocks_at_once(const Device& device, int cluster) {
  if (cluster == 1) return device.processors;
  return smaller(device.processors / cluster, device.clusters[cluster == 8 ? 0 : cluster == 4 ? 1 : 2]) * cluster;
}

// The largest cluster that leaves a block no more cells than it would have without clusters.
void spread_cells(Plan& plan, const Layout& layout, const Device& device) {
  const int fewest = divided_up(layout.units(), device.processors);
  for (int cluster = most_cluster; cluster >= 1; cluster /= 2) {
    const int blocks = blocks_at_once(device, cluster);
    if (blocks == 0 || divided_up(layout.units(), blocks) > fewest) continue;
    if (cluster > 1 && (cluster > layout.p_tiles() || cluster > layout.units())) continue;
    plan.cluster = cluster;
    plan.units_per_block = fewest;
    plan.blocks = divided_up(divided_up(layout.units(), fewest), cluster) * cluster;
    return;
  }
}

int64_t shared_bytes(const Plan& plan, const Layout& layout) {
  return 2 * int64_t(SharedLayout(layout, plan.units_per_block, plan.cluster, plan.row_tiles, plan.shared_steps,
                                  plan.projection_resident, plan.stages).team);
}

// W_P first, then as many k-steps of the gates as there is memory for.
void keep_weights(Plan& plan, const Layout& layout, const Device& device) {
  plan.projection_resident = true;
  if (shared_bytes(plan, layout) > device.shared) plan.projection_resident = false;
  const int64_t step_bytes = 2 * 2 * plan.units_per_block * 2 * tile_bytes;
  const int64_t left = (device.shared - shared_bytes(plan, layout)) / step_bytes;
  plan.shared_steps = smaller(plan.k_steps - plan.register_steps, int(left));
  plan.shared = shared_bytes(plan, layout);
}

void count_bytes(Plan& plan, const Layout& layout) {
  const int64_t step_bytes = 2 * int64_t(layout.units()) * 4 * tile_bytes;
  const int64_t projection = 2 * int64_t(layout.p_tiles()) * layout.units() * tile_bytes;
  const int64_t streamed_steps = plan.k_steps - plan.register_steps - plan.shared_steps;
  plan.streamed_bytes = streamed_steps * step_bytes + (plan.projection_resident ? 0 : projection);
  plan.resident_bytes = plan.k_steps * step_bytes + projection - plan.streamed_bytes;
}

// A's columns in packed order -> the row-major right side they come from.
template <class O, class Value>
void pack_tile(Value&& value, char* to) {
  for (int lane = 0; lane < 32; ++lane)
    for (int r = 0; r < 4; ++r)
      for (int e = 0; e < 2; ++e, to += 2) {
        const uint16_t bits = O::from(value(tile_row(lane, r), tile_column(lane, r) + e));
        std::memcpy(to, &bits, 2);
      }
}

template <class O>
void pack_unit(const Layout& layout, int unit, const float* weight, const float* bias, char* record) {
  const int d = layout.dim, p = layout.projection;
  for (int group = 0; group < 2; ++group) {
    const int cell = unit * unit_cells + group * group_cells;
    for (int k = 0; k < layout.k_steps(); ++k)
      for (int tile = 0; tile < 2; ++tile)
        pack_tile<O>(
            [&](int row, int column) {
              const int of_h = 16 * k + column, of_cell = cell + row % 8, gate = 2 * tile + row / 8;
              return of_h < p && of_cell < d ? weight[(size_t(of_h) * 4 + size_t(gate)) * size_t(d) + of_cell] : 0.0f;
            },
            record + layout.gate_offset(group, k) + tile * tile_bytes);
    for (int j = 0; j < 4 * group_cells; ++j) {
      const int of_cell = cell + j % group_cells;
      const float value = of_cell < d ? bias[size_t(j / group_cells) * size_t(d) + of_cell] : 0.0f;
      std::memcpy(record + layout.bias_offset() + (group * 4 * group_cells + j) * 4, &value, sizeof value);
    }
  }
}

template <class O>
void pack_direction(const Layout& layout, const float* weight, const float* bias, const float* projection, char* to) {
  const int d = layout.dim, p = layout.projection;
  for (int unit = 0; unit < layout.units(); ++unit) {
    pack_unit<O>(layout, unit, weight, bias, to + size_t(unit) * size_t(layout.unit_bytes()));
    for (int tile = 0; tile < layout.p_tiles(); ++tile)
      pack_tile<O>(
          [&](int row, int column) {
            const int of_h = 16 * tile + row, of_cell = unit * unit_cells + column;
            return of_h < p && of_cell < d ? projection[size_t(of_cell) * size_t(p) + of_h] : 0.0f;
          },
          to + layout.projection_offset(tile, unit));
  }
}

}  // namespace

Plan plan_persistent(const Shape& shape, const Device& device, int32_t slots) {
  check_shape(shape);
  check_device(device, slots);
  const Layout layout = {shape.dim, shape.projection};
  Plan plan = {};
  if (shape.dim == shape.projection) {
    plan.reason = "the layer has no projection, or one to as many values as there are cells";
    return plan;
  }
  spread_cells(plan, layout, device);
  if (plan.units_per_block > most_units) {
    plan.reason = "the cells do not fit on the device's multiprocessors, 48 of each direction on one";
    return plan;
  }
  const Instance instance = instance_for(plan.units_per_block, slots);
  if (!instance.row_tiles) {
    plan.reason = "above 32 slots a multiprocessor has registers for 32 cells of each direction";
    return plan;
  }
  plan.row_tiles = instance.row_tiles;
  plan.threads = plan.units_per_block * 2 * 32 * 2;
  plan.k_steps = layout.k_steps();
  plan.register_steps = smaller(instance.register_steps, plan.k_steps);
  // few slots: all of h at once, since its latency counts; many: in two turns, since shared memory does
  plan.stages = plan.row_tiles > 2 ? 2 : 1;
  if (plan.stages == 1 && shared_bytes(plan, layout) > device.shared) plan.stages = 2;
  if (plan.k_steps <= staged_steps) plan.stages = 1;
  if (shared_bytes(plan, layout) > device.shared) {
    plan.reason = "a block needs more shared memory than the device has";
    return plan;
  }
  keep_weights(plan, layout, device);
  count_bytes(plan, layout);
  plan.scratch = int64_t(Scratch(layout, slots, plan.blocks / plan.cluster).size);
  return plan;
}

size_t packed_size(const Shape& shape) {
  check_shape(shape);
  return 2 * Layout{shape.dim, shape.projection}.direction_bytes();
}

void pack(const Shape& shape, Operand operand, const float* const weights[2], const float* const biases[2],
          const float* const projections[2], void* packed, size_t size) {
  if (size != packed_size(shape)) throw std::invalid_argument("packed: expected packed_size bytes");
  if (operand != Operand::fp16 && operand != Operand::bf16) throw std::invalid_argument("operand: expected 0 or 1");
  const Layout layout = {shape.dim, shape.projection};
  for (int d = 0; d < 2; ++d) {
    if (!weights[d] || !biases[d] || !projections[d]) throw std::invalid_argument("weights: expected W, B and W_P");
    const auto fill = operand == Operand::fp16 ? pack_direction<Fp16> : pack_direction<Bf16>;
    char* to = static_cast<char*>(packed) + size_t(d) * layout.direction_bytes();
    fill(layout, weights[d], biases[d], projections[d], to);
  }
}

}  // namespace cuda
}  // namespace elmo_fast
