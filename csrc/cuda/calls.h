// From a Call to what the blocks read. Shared by the launchers and the tests' simulator.
#pragma once

#include "persistent_body.h"
#include "scratch.h"
#include "step_body.h"

namespace elmo_fast {
namespace cuda {

// Throws std::invalid_argument unless the host's part of `call` fits together and `plan` can run.
void check_call(const Call& call, const Plan& plan);

inline Direction direction_of(const Call& call, int d) {
  const size_t dim = size_t(call.shape.dim), projection = size_t(call.shape.projection), of = size_t(d);
  Direction k = {};
  k.layout = {call.shape.dim, call.shape.projection};
  k.packed = static_cast<const char*>(call.packed) + of * k.layout.direction_bytes();
  k.products = call.products[d];
  k.rows = call.rows[d];
  k.reset = call.reset;
  k.reset_h = call.reset_h ? call.reset_h + of * projection : nullptr;
  k.reset_c = call.reset_c ? call.reset_c + of * dim : nullptr;
  k.output = call.output + of * projection;
  k.h_first = call.h_first + of * projection;
  k.c_first = call.c_first + of * dim;
  k.h = call.h + of * projection;
  k.c = call.c + of * dim;
  k.lanes = call.lanes;
  k.cell_clip = call.cell_clip;
  k.proj_clip = call.proj_clip;
  return k;
}

inline StepCall step_call(const Call& call, const Plan& plan, Sums sums) {
  StepCall result = {};
  const Layout layout = {call.shape.dim, call.shape.projection};
  const StepScratch at(layout, call.lanes, plan.blocks / plan.cluster, plan.cluster);
  char* scratch = static_cast<char*>(call.scratch);
  const size_t cells = size_t(call.lanes) * size_t(layout.h_width());
  for (int d = 0; d < 2; ++d) {
    Direction& k = result.direction[d];
    k = direction_of(call, d);
    for (int parity = 0; parity < 2; ++parity)
      k.h_operand[parity] = reinterpret_cast<uint16_t*>(scratch + at.h_operand[parity]) + size_t(d) * cells;
    k.partials = reinterpret_cast<float*>(scratch + at.partials) +
                 size_t(d) * cells * size_t(plan.blocks / plan.cluster);
  }
  result.units_per_block = plan.units_per_block;
  result.cluster = plan.cluster;
  result.blocks = plan.blocks;
  result.arrived = sums == Sums::last_block && layout.projected() ? reinterpret_cast<uint32_t*>(scratch + at.arrived)
                                                                  : nullptr;
  return result;
}

inline PersistentCall persistent_call(const Call& call, const Plan& plan, const Patience& patience, int d) {
  const Layout layout = {call.shape.dim, call.shape.projection};
  const PersistentScratch at(layout, call.lanes, plan.blocks);
  char* scratch = static_cast<char*>(call.scratch);
  PersistentCall result = {};
  result.direction = direction_of(call, d);
  for (int parity = 0; parity < 2; ++parity)
    result.direction.h_operand[parity] = reinterpret_cast<uint16_t*>(scratch + at.h_operand[parity]);
  result.direction.partials = reinterpret_cast<float*>(scratch + at.partials);
  result.begin = call.begin;
  result.steps = call.steps;
  result.units_per_block = plan.units_per_block;
  result.blocks = plan.blocks;
  result.barrier = reinterpret_cast<BarrierMemory*>(scratch + at.barrier);
  result.first_count = patience.first_count;
  result.nanoseconds = patience.nanoseconds;
  result.absent_block = patience.absent_block;
  result.aborts = patience.aborts;
  return result;
}

}  // namespace cuda
}  // namespace elmo_fast
