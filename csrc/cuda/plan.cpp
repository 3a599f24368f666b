// How a layer is cut into blocks, and the packing of its weights. No CUDA in here.
#include <cstring>
#include <stdexcept>
#include <string>

#include "../projected_lstm_cuda.h"
#include "layout.h"
#include "operand.h"
#include "scratch.h"

namespace elmo_fast {
namespace cuda {
namespace {

constexpr int most_steps_lanes = 1 << 20;

void check_shape(const Shape& s) {
  if (s.dim <= 0 || s.projection <= 0 || s.dim > (1 << 20) || s.projection > (1 << 16))
    throw std::invalid_argument("shape: expected a dim of 1 to 2^20 and a projection of 1 to 2^16");
}

void check_device(const Device& device, int lanes, int most) {
  if (device.processors < 1 || device.shared < 0 || device.cluster < 1)
    throw std::invalid_argument("device: expected processors and cluster of 1 or more");
  if (lanes < 1 || lanes > most) throw std::invalid_argument("lanes: expected 1 to " + std::to_string(most));
}

// 1, 2, 4 or 8 tiles.
int lane_tiles_for(int lanes) {
  int tiles = 1;
  while (tiles < 8 && tiles * tile_lanes < lanes) tiles *= 2;
  return tiles;
}

int cluster_for(const Device& device, int blocks) {
  int cluster = 1;
  while (cluster * 2 <= device.cluster && cluster * 2 <= 8 && cluster < blocks) cluster *= 2;
  return cluster;
}

void take(Plan& plan, const SharedLayout& shared, const Device& device) {
  plan.shared = int64_t(shared.size);
  if (plan.shared > device.shared) plan.reason = "a block needs more shared memory than the device has";
}

// A's columns in packed order -> the row-major right side it comes from.
template <class O, class Value>
void pack_tile(Value&& value, uint16_t* to) {
  for (int lane = 0; lane < 32; ++lane)
    for (int r = 0; r < 4; ++r)
      for (int e = 0; e < 2; ++e) *to++ = O::from(value(tile_row(lane, r), tile_column(lane, r) + e));
}

template <class O>
void pack_unit(const Layout& layout, int unit, const float* weight, const float* bias, const float* projection,
               char* record) {
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
            reinterpret_cast<uint16_t*>(record + layout.gate_offset(group, k) + tile * tile_bytes));
    for (int j = 0; j < 4 * group_cells; ++j) {
      const int of_cell = cell + j % group_cells;
      const float value = of_cell < d ? bias[size_t(j / group_cells) * size_t(d) + of_cell] : 0.0f;
      std::memcpy(record + layout.bias_offset() + (group * 4 * group_cells + j) * 4, &value, sizeof value);
    }
  }
  for (int tile = 0; tile < layout.p_tiles(); ++tile)
    pack_tile<O>(
        [&](int row, int column) {
          const int of_h = 16 * tile + row, of_cell = unit * unit_cells + column;
          return of_h < p && of_cell < d ? projection[size_t(of_cell) * size_t(p) + of_h] : 0.0f;
        },
        reinterpret_cast<uint16_t*>(record + layout.projection_offset(tile)));
}

}  // namespace

Plan plan_steps(const Shape& shape, const Device& device, int32_t lanes) {
  check_shape(shape);
  check_device(device, lanes, most_steps_lanes);
  const Layout layout = {shape.dim, shape.projection};
  Plan plan = {};
  plan.units_per_block = smaller(most_units, divided_up(layout.units(), larger(1, device.processors / 2)));
  const int blocks = divided_up(layout.units(), plan.units_per_block);
  plan.cluster = layout.projected() ? cluster_for(device, blocks) : 1;
  plan.blocks = divided_up(blocks, plan.cluster) * plan.cluster;
  plan.lane_tiles = lane_tiles_for(lanes);
  plan.scratch = int64_t(StepScratch(layout, lanes, plan.blocks / plan.cluster, plan.cluster).size);
  take(plan, SharedLayout(layout, plan.units_per_block, plan.cluster, plan.lane_tiles, false), device);
  while (plan.reason && plan.lane_tiles > 1) {  // more tiles of fewer lanes
    plan.reason = nullptr;
    plan.lane_tiles /= 2;
    take(plan, SharedLayout(layout, plan.units_per_block, plan.cluster, plan.lane_tiles, false), device);
  }
  return plan;
}

Plan plan_persistent(const Shape& shape, const Device& device, int32_t lanes) {
  check_shape(shape);
  check_device(device, lanes, most_steps_lanes);
  const Layout layout = {shape.dim, shape.projection};
  Plan plan = {};
  plan.cluster = 1;
  plan.units_per_block = divided_up(layout.units(), device.processors);
  plan.blocks = divided_up(layout.units(), smaller(most_units, plan.units_per_block));
  plan.lane_tiles = lane_tiles_for(lanes);
  if (lanes > persistent_lanes) {
    plan.reason = "the batch is above 32 lanes";
  } else if (plan.units_per_block > most_units) {
    plan.reason = "the cells do not fit on the device's processors, 64 on each";
  } else {
    plan.scratch = int64_t(PersistentScratch(layout, lanes, plan.blocks).size);
    take(plan, SharedLayout(layout, plan.units_per_block, 1, plan.lane_tiles, true), device);
  }
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
    if (!weights[d] || !biases[d] || layout.projected() != (projections[d] != nullptr))
      throw std::invalid_argument("weights: expected W and B, and W_P exactly when dim and projection differ");
    for (int unit = 0; unit < layout.units(); ++unit) {
      char* record = static_cast<char*>(packed) + size_t(d) * layout.direction_bytes() +
                     size_t(unit) * size_t(layout.unit_bytes());
      const auto fill = operand == Operand::fp16 ? pack_unit<Fp16> : pack_unit<Bf16>;
      fill(layout, unit, weights[d], biases[d], projections[d], record);
    }
  }
}

}  // namespace cuda
}  // namespace elmo_fast
