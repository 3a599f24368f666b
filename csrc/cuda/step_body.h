// Tier B: one step, `blocks` blocks of each direction and tile of lanes, in clusters. What each block does, phase after
// phase: step_kernels.cu and the tests' simulator run these.
#pragma once

#include "gate_phases.h"
#include "projection_phases.h"

namespace elmo_fast {
namespace cuda {

// m of all blocks of the cluster, side by side, for the lanes in use: [lane, gathered_stride].
template <class Block>
ELMO_HD void gather_m(Block& block, int cluster, int cells, int lanes, const uint16_t* m, int m_stride,
                      uint16_t* gathered, int gathered_stride) {
  const int chunks = cells / 8, across = cluster * chunks;
  block.each_thread([&](int warp, int thread) {
    for (int at = warp * 32 + thread; at < lanes * across; at += threads) {
      const int lane = at / across, rank = at % across / chunks, column = at % chunks * 8;
      *reinterpret_cast<Words4*>(gathered + lane * gathered_stride + rank * cells + column) =
          block.load_remote(rank, reinterpret_cast<const Words4*>(m + lane * m_stride + column));
    }
  });
}

// Tiles shared by several warps, each with a part of the units; parts meet in shared memory, added in order. For m of
// a cluster: many units, few tiles.
template <class O, int NT, class Block>
ELMO_HD void project_in_parts(Block& block, const Direction& k, const Moment& now, const ProjectionWork& work,
                              const TileShare& share, const uint16_t* m, int m_stride, char* shared) {
  TileC* parts = reinterpret_cast<TileC*>(shared);
  typename Block::template PerThread<ProjectionSums<NT>> sums;
  block.each_warp([&](int warp) {
    const int tile = work.tile_begin + warp % share.tiles, part = warp / share.tiles;
    if (part >= share.parts || tile >= work.tile_end) return;
    multiply_tile<O, NT>(block, k.layout, work, tile, work.units * part / share.parts,
                         work.units * (part + 1) / share.parts, m, m_stride, warp, sums);
    if (part == 0) return;
    block.each_lane([&](int lane) {
      TileC* to = parts + (warp - share.tiles) * NT * 32 + lane;
      ELMO_UNROLL
      for (int n = 0; n < NT; ++n) to[n * 32] = sums.at(warp, lane).of[n];
    });
  });
  block.sync();
  block.each_thread([&](int warp, int lane) {
    const int tile = work.tile_begin + warp;
    if (warp >= share.tiles || tile >= work.tile_end) return;
    for (int part = 1; part < share.parts; ++part) {
      const TileC* from = parts + ((part - 1) * share.tiles + warp) * NT * 32 + lane;
      ELMO_UNROLL
      for (int n = 0; n < NT; ++n) {
        const TileC more = from[n * 32];
        ELMO_UNROLL
        for (int r = 0; r < 4; ++r) sums.at(warp, lane).of[n].r[r] += more.r[r];
      }
    }
    store_partial<NT>(k, now, work, tile, lane, sums.at(warp, lane));
  });
}

struct StepCall {
  Direction direction[2];
  Moment now;        // first_lane: of tile 0
  int units_per_block, cluster, blocks;
  uint32_t* arrived; // [2, lane tiles, cluster] zero between steps; null: a kernel of its own adds up
};

// The block that comes last to a slice of columns adds up the partial sums of all clusters.
template <class O, class Block>
ELMO_HD void sum_if_last(Block& block, const StepCall& call, const Direction& k, const Moment& now, int lanes,
                         const ProjectionWork& work, uint32_t* arrived, float* shared, uint32_t* verdict) {
  const uint32_t clusters = uint32_t(call.blocks / call.cluster);
  block.sync();
  block.first_thread([&] {
    const uint32_t before = block.add_acquire_release(arrived, 1u);
    if (before + 1 == clusters) block.store_relaxed(arrived, 0u);
    *verdict = before + 1 == clusters;
  });
  block.sync();
  if (!*verdict) return;
  const SumShare share = {now.first_lane, now.first_lane + lanes, 16 * work.tile_begin, 16 * work.tile_end, 0, 1};
  sum_partials<O>(block, k, now, int(clusters), share, shared);
}

// `index` is the block's number within its direction and tile of lanes; `rank` its number within the cluster.
template <class O, int NT, int depth, class Block>
ELMO_HD void run_step(Block& block, const StepCall& call, int of_direction, int lane_tile, int index, int rank) {
  const Direction& k = call.direction[of_direction];
  const Layout& layout = k.layout;
  Moment now = call.now;
  now.first_lane += lane_tile * NT * tile_lanes;
  const int units_per_block = call.units_per_block, first_unit = index * units_per_block;
  const int units = cluster_units(layout, first_unit, units_per_block), dim2 = 2 * layout.dim;
  const SharedLayout at(layout, units_per_block, call.cluster, NT, false);
  const GateShare share(units_per_block);
  const size_t c_at = size_t(now.first_lane) * size_t(dim2) + size_t(first_unit) * unit_cells;
  const Cells cells = {first_unit, units, (now.first ? k.c_first : k.c) + c_at, dim2, k.c + c_at, dim2};
  const char* weights = k.packed + size_t(units > 0 ? first_unit : 0) * size_t(layout.unit_bytes());
  uint16_t* h = reinterpret_cast<uint16_t*>(block.shared + at.h);
  uint16_t* m = reinterpret_cast<uint16_t*>(block.shared + at.m);
  char* parts = block.shared + at.parts;

  typename Block::template PerThread<GateSums<NT>> sums;
  typename Block::template PerThread<Ahead<depth>> ahead;
  prefetch_gates<depth>(block, layout, cells, weights, share, ahead);
  begin_gates<NT>(block, k, now, cells, weights, share, sums);
  block.wait_for_launch_before();
  block.let_next_launch_start();
  load_h<O>(block, k, now, NT * tile_lanes, h, at.h_stride);
  block.sync();
  multiply_gates<O, NT, depth>(block, layout, cells, weights, share, h, at.h_stride, ahead, sums);
  join_gates<NT>(block, share, parts, sums);
  update_cells<O, NT>(block, k, now, cells, share, m, at.m_stride, sums);
  if (!layout.projected()) return;

  const int per_rank = divided_up(layout.p_tiles(), call.cluster), cluster_unit = (index - rank) * units_per_block;
  const int all_units = cluster_units(layout, cluster_unit, call.cluster * units_per_block);
  const char* cluster_weights = k.packed + size_t(all_units > 0 ? cluster_unit : 0) * size_t(layout.unit_bytes());
  const ProjectionWork work = {cluster_weights, all_units,
                               smaller(rank * per_rank, layout.p_tiles()),
                               smaller((rank + 1) * per_rank, layout.p_tiles()), index / call.cluster};
  const int lanes = now.lanes(NT * tile_lanes);
  if (call.cluster == 1) {
    block.sync();
    project<O, NT>(block, k, now, work, m, at.m_stride);
  } else {
    block.cluster_arrive();
    block.cluster_wait();
    gather_m(block, call.cluster, units_per_block * unit_cells, lanes, m, at.m_stride, h, at.gathered_stride);
    block.cluster_arrive();  // m of the others is read no more
    block.sync();
    const TileShare tiles(per_rank);
    if (tiles.parts == 1)
      project<O, NT>(block, k, now, work, h, at.gathered_stride);
    else
      project_in_parts<O, NT>(block, k, now, work, tiles, h, at.gathered_stride, parts);
  }
  if (call.arrived) {
    uint32_t* arrived = call.arrived + (of_direction * block.lane_tiles() + lane_tile) * call.cluster + rank;
    sum_if_last<O>(block, call, k, now, lanes, work, arrived, reinterpret_cast<float*>(parts),
                   reinterpret_cast<uint32_t*>(block.shared + at.size - 16));
  }
  if (call.cluster > 1) block.cluster_wait();
}

// The second kernel: worker of `workers` for one direction.
template <class O, class Block>
ELMO_HD void run_sums(Block& block, const StepCall& call, int of_direction, int worker, int workers) {
  const Direction& k = call.direction[of_direction];
  block.let_next_launch_start();  // the next step's weights may come while this one ends
  block.wait_for_launch_before();
  const SumShare share = {0, call.now.live, 0, k.layout.h_width(), worker, workers};
  sum_partials<O>(block, k, call.now, call.blocks / call.cluster, share, reinterpret_cast<float*>(block.shared));
}

}  // namespace cuda
}  // namespace elmo_fast
