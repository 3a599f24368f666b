// Tier C0: all steps of one direction, and the replay of a launch that gave up. What each block does, phase after
// phase: persistent_kernels.cu and the tests' simulator run these.
#pragma once

#include "gate_phases.h"
#include "grid_barrier.h"
#include "projection_phases.h"

namespace elmo_fast {
namespace cuda {

constexpr int replay_lanes = tile_lanes;

struct PersistentCall {
  Direction direction;
  const int32_t* begin;  // [steps + 1]
  int steps;
  int units_per_block, blocks;
  BarrierMemory* barrier;
  uint32_t first_count;
  int64_t nanoseconds;
  int absent_block;
  int32_t* aborts;       // [1]
};

ELMO_HD Moment moment_of(const PersistentCall& call, int t, int first_lane) {
  return {t, call.begin[t], call.begin[t + 1] - call.begin[t], first_lane, t == 0};
}

template <class Block>
ELMO_HD void copy_cells(Block& block, const Layout& layout, const Cells& cells, int first_lane, int lanes,
                        const float* from, int from_stride, float* to, int to_stride) {
  const int count = smaller(cells.units * unit_cells, layout.dim - cells.first_unit * unit_cells);
  block.each_thread([&](int warp, int thread) {
    for (int at = warp * 32 + thread; at < lanes * count; at += threads)
      to[size_t(at / count) * size_t(to_stride) + at % count] =
          from[size_t(first_lane + at / count) * size_t(from_stride) + at % count];
  });
}

template <class O, int NT, class Block>
ELMO_HD void run_persistent(Block& block, const PersistentCall& call, int index) {
  constexpr int depth = 2;
  const Direction& k = call.direction;
  const Layout& layout = k.layout;
  const int units_per_block = call.units_per_block, first_unit = index * units_per_block;
  const int units = cluster_units(layout, first_unit, units_per_block), dim2 = 2 * layout.dim;
  const SharedLayout at(layout, units_per_block, 1, NT, true);
  const GateShare share(units_per_block);
  char* weights = block.shared;
  uint16_t* h = reinterpret_cast<uint16_t*>(block.shared + at.h);
  uint16_t* m = reinterpret_cast<uint16_t*>(block.shared + at.m);
  float* c = reinterpret_cast<float*>(block.shared + at.c);
  char* parts = block.shared + at.parts;
  const Cells cells = {first_unit, units, c, at.c_stride, c, at.c_stride};
  // once a launch gave up, those queued behind it wait no more
  const bool gave_up = block.load_relaxed(reinterpret_cast<const uint32_t*>(call.aborts)) != 0;
  GridBarrier<Block> barrier(call.barrier, call.first_count, uint32_t(call.blocks), gave_up ? 0 : call.nanoseconds,
                             reinterpret_cast<uint32_t*>(block.shared + at.size - 16));
  const int lanes = call.begin[1] - call.begin[0];  // live lanes never grow
  const size_t bytes = size_t(units) * size_t(layout.unit_bytes());
  block.copy_weights(weights, k.packed + size_t(first_unit) * size_t(layout.unit_bytes()), bytes);
  copy_cells(block, layout, cells, 0, lanes, k.c_first + first_unit * unit_cells, dim2, c, at.c_stride);
  block.sync();
  if (index == call.absent_block) return;

  typename Block::template PerThread<GateSums<NT>> sums;
  typename Block::template PerThread<Ahead<depth>> ahead;
  for (int t = 0; t < call.steps; ++t) {
    const Moment now = moment_of(call, t, 0);
    prefetch_gates<depth>(block, layout, cells, weights, share, ahead);
    begin_gates<NT>(block, k, now, cells, weights, share, sums);
    if (t > 0 && !barrier.wait(block)) return;
    load_h<O>(block, k, now, NT * tile_lanes, h, at.h_stride);
    block.sync();
    multiply_gates<O, NT, depth>(block, layout, cells, weights, share, h, at.h_stride, ahead, sums);
    join_gates<NT>(block, share, parts, sums);
    update_cells<O, NT>(block, k, now, cells, share, m, at.m_stride, sums);
    if (layout.projected()) {
      block.sync();
      project<O, NT>(block, k, now, {weights, units, 0, layout.p_tiles(), index}, m, at.m_stride);
      barrier.arrive(block);
      if (!barrier.wait(block)) return;
      sum_partials<O>(block, k, now, call.blocks, {0, now.live, 0, layout.h_width(), index, call.blocks},
                      reinterpret_cast<float*>(parts));
    }
    if (t + 1 < call.steps) barrier.arrive(block);
  }
  block.sync();
  const size_t c_at = size_t(first_unit) * unit_cells;
  copy_cells(block, layout, cells, 0, lanes, c, at.c_stride, k.c + c_at, dim2);
}

// The replay: one block for each tile of 8 lanes does, block by block, what the launch that gave up would have done,
// with weights from global memory. Waits for nobody, and adds in the same order.
template <class O, class Block>
ELMO_HD void run_replay(Block& block, const PersistentCall& call, int lane_tile) {
  constexpr int depth = 2;
  if (block.load_relaxed(&call.barrier->abort) == 0) return;
  const Direction& k = call.direction;
  const Layout& layout = k.layout;
  const int units_per_block = call.units_per_block, first_lane = lane_tile * replay_lanes, dim2 = 2 * layout.dim;
  const SharedLayout at(layout, units_per_block, 1, 1, false);
  const GateShare share(units_per_block);
  uint16_t* h = reinterpret_cast<uint16_t*>(block.shared + at.h);
  uint16_t* m = reinterpret_cast<uint16_t*>(block.shared + at.m);
  char* parts = block.shared + at.parts;
  if (lane_tile == 0) block.first_thread([&] { ++*call.aborts; });
  typename Block::template PerThread<GateSums<1>> sums;
  typename Block::template PerThread<Ahead<depth>> ahead;
  for (int t = 0; t < call.steps; ++t) {
    const Moment now = moment_of(call, t, first_lane);
    const int lanes = now.lanes(replay_lanes);
    if (lanes == 0) return;
    load_h<O>(block, k, now, replay_lanes, h, at.h_stride);
    for (int index = 0; index < call.blocks; ++index) {
      const int first_unit = index * units_per_block, units = cluster_units(layout, first_unit, units_per_block);
      const char* weights = k.packed + size_t(first_unit) * size_t(layout.unit_bytes());
      const size_t c_at = size_t(first_lane) * size_t(dim2) + size_t(first_unit) * unit_cells;
      const Cells cells = {first_unit, units, (now.first ? k.c_first : k.c) + c_at, dim2, k.c + c_at, dim2};
      block.sync();  // h is there; m and parts of the block before are read no more
      prefetch_gates<depth>(block, layout, cells, weights, share, ahead);
      begin_gates<1>(block, k, now, cells, weights, share, sums);
      multiply_gates<O, 1, depth>(block, layout, cells, weights, share, h, at.h_stride, ahead, sums);
      join_gates<1>(block, share, parts, sums);
      update_cells<O, 1>(block, k, now, cells, share, m, at.m_stride, sums);
      if (!layout.projected()) continue;
      block.sync();
      project<O, 1>(block, k, now, {weights, units, 0, layout.p_tiles(), index}, m, at.m_stride);
    }
    block.sync();
    if (layout.projected())
      sum_partials<O>(block, k, now, call.blocks, {first_lane, first_lane + lanes, 0, layout.h_width(), 0, 1},
                      reinterpret_cast<float*>(parts));
  }
}

}  // namespace cuda
}  // namespace elmo_fast
