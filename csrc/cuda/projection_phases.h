// The projection of m to h, and the sum of its parts. Both tiers run these phases (phase_types.h).
#pragma once

#include "phase_types.h"

namespace elmo_fast {
namespace cuda {

// Partial sums of projection rows [16 * tile, ...) for the block's lanes, over units [0, units) of m, whose records
// begin at `weights`. Written to partials[part].
struct ProjectionWork {
  const char* weights;
  int units;
  int tile_begin, tile_end;
  int part;
};

template <int NT>
struct ProjectionSums { TileC of[NT]; };

template <class O, int NT, class Block>
ELMO_HD void multiply_tile(Block& block, const Layout& layout, const ProjectionWork& work, int tile, int unit_begin,
                           int unit_end, const uint16_t* m, int m_stride, int warp,
                           typename Block::template PerThread<ProjectionSums<NT>>& sums) {
  block.each_lane([&](int lane) {
    ELMO_UNROLL
    for (int j = 0; j < 4 * NT; ++j) sums.at(warp, lane).of[j / 4].r[j % 4] = 0.0f;
  });
  const char* from = work.weights + layout.projection_offset(tile);
  block.converge();
  ELMO_UNROLL4
  for (int unit = unit_begin; unit < unit_end; ++unit) {
    typename Block::template PerLane<TileA> a;
    block.each_lane([&](int lane) {
      const Words4 words = block.load_weights(from + size_t(unit) * size_t(layout.unit_bytes()) + lane * 16);
      ELMO_UNROLL
      for (int r = 0; r < 4; ++r) a.at(lane).r[r] = words.word[r];
    });
    ELMO_UNROLL
    for (int n = 0; n < NT; ++n)
      block.template multiply<O>([&](int lane) -> TileC& { return sums.at(warp, lane).of[n]; },
                                 [&](int lane) -> const TileA& { return a.at(lane); },
                                 [&](int lane) { return right_tile(m, m_stride, unit * unit_cells, n, lane); });
  }
}

template <int NT>
ELMO_HD void store_partial(const Direction& k, const Moment& now, const ProjectionWork& work, int tile, int lane,
                           const ProjectionSums<NT>& sums) {
  const size_t width = size_t(k.layout.h_width());
  ELMO_UNROLL
  for (int n = 0; n < NT; ++n) {
    ELMO_UNROLL
    for (int r = 0; r < 4; ++r) {
      const int at = now.first_lane + n * tile_lanes + lane % 4 * 2 + r % 2;
      const int row = 16 * tile + lane / 4 + r / 2 * 8;
      if (at < now.live) k.partials[(size_t(work.part) * size_t(k.lanes) + size_t(at)) * width + row] = sums.of[n].r[r];
    }
  }
}

// Every tile by one warp. For m of one block: few units, many tiles.
template <class O, int NT, class Block>
ELMO_HD void project(Block& block, const Direction& k, const Moment& now, const ProjectionWork& work,
                     const uint16_t* m, int m_stride) {
  block.each_warp([&](int warp) {
    typename Block::template PerThread<ProjectionSums<NT>> sums;
    for (int tile = work.tile_begin + warp; tile < work.tile_end; tile += warps) {
      multiply_tile<O, NT>(block, k.layout, work, tile, 0, work.units, m, m_stride, warp, sums);
      block.each_lane([&](int lane) { store_partial<NT>(k, now, work, tile, lane, sums.at(warp, lane)); });
    }
  });
}

// Which outputs a worker adds up: lanes [lane_begin, lane_end) by groups of 8 columns, 8 groups at a time.
struct SumShare {
  int lane_begin, lane_end;
  int column_begin, column_end;  // multiples of 8
  int worker, workers;
};

// h = clip(sum of `count` partials), four sums of a quarter each and then those, in order.
template <class O, class Block>
ELMO_HD void sum_partials(Block& block, const Direction& k, const Moment& now, int count, const SumShare& share,
                          float* shared) {
  const int across = (share.column_end - share.column_begin) / 8, width = k.layout.h_width();
  const int total = (share.lane_end - share.lane_begin) * across;
  for (int first = share.worker * 8; first < total; first += share.workers * 8) {
    block.each_thread([&](int warp, int thread) {
      const int at = first + warp;
      if (at >= total) return;
      const int lane = share.lane_begin + at / across, quarter = thread / 8;
      const int column = share.column_begin + at % across * 8 + thread % 8;
      const float* from = k.partials + size_t(lane) * size_t(width) + column;
      const size_t stride = size_t(k.lanes) * size_t(width);
      float sum = 0.0f;
      const int end = count * (quarter + 1) / 4;
      ELMO_UNROLL8
      for (int part = count * quarter / 4; part < end; ++part)
        sum += block.load_exchanged(from + size_t(part) * stride);
      shared[warp * 32 + thread] = sum;
    });
    block.sync();
    block.each_thread([&](int warp, int thread) {
      const int at = first + warp, column = share.column_begin + at % across * 8 + thread;
      if (at >= total || thread >= 8 || column >= k.layout.projection) return;
      const float* quarters = shared + warp * 32 + thread;
      const float sum = ((quarters[0] + quarters[8]) + quarters[16]) + quarters[24];
      emit<O>(k, now, share.lane_begin + at / across, column, clipped(sum, k.proj_clip));
    });
    block.sync();
  }
}

}  // namespace cuda
}  // namespace elmo_fast
