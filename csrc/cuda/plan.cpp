// How a layer is spread over a device. No CUDA in here.
#include <stdexcept>
#include <string>

#include "../projected_lstm_cuda.h"
#include "layout.h"

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

int64_t block_bytes(const Plan& plan, const Layout& layout) {
  return 2 * int64_t(SharedLayout(layout, plan.units_per_block, plan.cluster, plan.row_tiles, plan.shared_steps,
                                  plan.projection_resident)
                         .team);
}

// W_P first, then as many k-steps of the gates as there is memory for.
void keep_weights(Plan& plan, const Layout& layout, const Device& device) {
  plan.projection_resident = true;
  if (block_bytes(plan, layout) > device.shared) plan.projection_resident = false;
  const int64_t step_bytes = 2 * 2 * plan.units_per_block * 2 * tile_bytes;
  const int64_t left = (device.shared - block_bytes(plan, layout)) / step_bytes;
  plan.shared_steps = smaller(plan.k_steps - plan.register_steps, int(left));
  plan.shared_bytes = block_bytes(plan, layout);
}

void count_bytes(Plan& plan, const Layout& layout) {
  const int64_t step_bytes = 2 * int64_t(layout.units()) * 4 * tile_bytes;
  const int64_t projection = 2 * int64_t(layout.p_tiles()) * layout.units() * tile_bytes;
  const int64_t streamed_steps = plan.k_steps - plan.register_steps - plan.shared_steps;
  plan.streamed_bytes = streamed_steps * step_bytes + (plan.projection_resident ? 0 : projection);
  plan.resident_bytes = plan.k_steps * step_bytes + projection - plan.streamed_bytes;
}

// The smallest instance that holds so many slots and threads; -1 where there is none.
int instance_for(int threads, int slots) {
  for (int at = 0; at < instance_count; ++at)
    if (threads <= instances[at].most_threads && slots <= instances[at].row_tiles * tile_slots) return at;
  return -1;
}

// Fills the plan; null, or why the layer cannot run.
const char* fill(Plan& plan, const Layout& layout, const Device& device, int slots) {
  if (layout.dim == layout.projection)
    return "the layer has no projection, or one to as many values as there are cells";
  spread_cells(plan, layout, device);
  if (plan.units_per_block > most_units)
    return "the cells do not fit on the device's multiprocessors, 48 of each direction on one";
  plan.threads = plan.units_per_block * 2 * 32 * 2;
  plan.instance = instance_for(plan.threads, slots);
  if (plan.instance < 0) return "above 32 slots a multiprocessor has registers for 32 cells of each direction";
  plan.row_tiles = instances[plan.instance].row_tiles;
  plan.k_steps = layout.k_steps();
  plan.register_steps = smaller(instances[plan.instance].register_steps, plan.k_steps);
  if (block_bytes(plan, layout) > device.shared) return "a block needs more shared memory than the device has";
  keep_weights(plan, layout, device);
  count_bytes(plan, layout);
  plan.scratch_bytes = int64_t(Scratch(layout, slots, plan.blocks / plan.cluster).size);
  return nullptr;
}

}  // namespace

Plan plan_persistent(const Shape& shape, const Device& device, int32_t slots) {
  check_shape(shape);
  check_device(device, slots);
  Plan plan = {};
  plan.reason = fill(plan, {shape.dim, shape.projection}, device, slots);
  return plan;
}

}  // namespace cuda
}  // namespace elmo_fast
