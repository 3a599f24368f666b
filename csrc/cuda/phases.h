// The phases of a step, for a block of `warps` warps. `Block` is the machine: DeviceBlock (device_block.h) runs one
// thread of it, the tests' HostBlock all of them, so everything between two `sync` is written for one thread and
// what a thread keeps in between lives in a `PerThread`.
//
// No product depends on another lane's: tiles of lanes may be cut as they like. Sums run in the order of
// GateShare, TileShare and `sum_partials`, which know the shape and the device, not the lanes.
#pragma once

#include <cmath>

#include "layout.h"
#include "operand.h"

namespace elmo_fast {
namespace cuda {

// One direction of one call, as every phase reads it. Pointers to [.., 2P] and [.., 2D] begin at the direction's half.
struct Direction {
  Layout layout;
  const char* packed;        // [units] records
  const float* products;     // [rows, 4D]
  const int32_t* rows;       // [S] or null
  const uint8_t* reset;      // [S] or null
  const float* reset_h;      // [P] or null
  const float* reset_c;      // [D] or null
  float* output;             // [S, 2P]
  const float* h_first;      // [lanes, 2P]
  const float* c_first;      // [lanes, 2D]
  float* h;                  // [lanes, 2P]
  float* c;                  // [lanes, 2D]
  uint16_t* h_operand[2];    // [lanes, h_width] h of even and odd steps, padding zero
  float* partials;           // [parts, lanes, h_width]
  int lanes;
  float cell_clip, proj_clip;
};

// A step and the lanes that a block works on.
struct Moment {
  int step;        // its parity chooses the h operand
  int begin;       // first step-row
  int live;        // lanes
  int first_lane;  // of the block's tile
  bool first;      // of the call: the state is h_first, c_first

  ELMO_HD int lanes(int most) const { return larger(0, smaller(live - first_lane, most)); }
};

struct TileA { uint32_t r[4]; };  // registers of one thread
struct TileB { uint32_t r[2]; };
struct TileC { float r[4]; };

template <int NT>
struct GateSums { TileC of[2][NT]; };  // (i, j), (f, o) of cell lane / 4, lanes 2 * (lane % 4) and the next

// Weights on their way: the next `depth` steps along K.
template <int depth>
struct Ahead { TileA of[depth][2]; };

// The cells a block owns and where their state lies: c[lane * stride + cell], cells counted from the block's first.
struct Cells {
  int first_unit, units;   // what there is of units_per_block
  const float* c_before;
  int before_stride;
  float* c;
  int stride;
};

ELMO_HD float clipped(float x, float limit) { return x > limit ? limit : (x < -limit ? -limit : x); }  // NaN passes
ELMO_HD float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

ELMO_HD bool is_reset(const Direction& k, const Moment& now, int lane) {
  return k.reset && k.reset[now.begin + lane] != 0;
}

// Sums begin as x W_x + B: part 0 of each group, zero elsewhere. Needs nothing of the step before.
template <int NT, class Block>
ELMO_HD void begin_gates(Block& block, const Direction& k, const Moment& now, const Cells& cells, const char* weights,
                         const GateShare& share, typename Block::template PerThread<GateSums<NT>>& sums) {
  block.each_thread([&](int warp, int lane) {
    GateSums<NT>& mine = sums.at(warp, lane);
    const int group = share.group(warp), unit = group / 2;
    const int cell = (cells.first_unit + unit) * unit_cells + group % 2 * group_cells + lane / 4;
    const bool there = share.part(warp) == 0 && unit < cells.units && cell < k.layout.dim;
    const char* record = weights + size_t(there ? unit : 0) * size_t(k.layout.unit_bytes()) + k.layout.bias_offset();
    const float* bias = reinterpret_cast<const float*>(record) + group % 2 * 4 * group_cells + lane / 4;
    ELMO_UNROLL
    for (int n = 0; n < NT; ++n) {
      ELMO_UNROLL
      for (int e = 0; e < 2; ++e) {
        const int at = now.first_lane + n * tile_lanes + lane % 4 * 2 + e;
        const bool runs = there && at < now.live;
        const int s = now.begin + at;
        const size_t row = runs ? size_t(k.rows ? k.rows[s] : s) : 0;
        const float* z = k.products + row * 4 * size_t(k.layout.dim) + (runs ? cell : 0);
        ELMO_UNROLL
        for (int gate = 0; gate < 4; ++gate)
          mine.of[gate / 2][n].r[gate % 2 * 2 + e] =
              runs ? z[size_t(gate) * size_t(k.layout.dim)] + bias[gate * group_cells] : 0.0f;
      }
    }
  });
}

template <int depth, class Block>
ELMO_HD void load_ahead(const Block& block, const char* gates, int k, int lane, TileA (&to)[2]) {
  ELMO_UNROLL
  for (int tile = 0; tile < 2; ++tile) {
    const Words4 words = block.load_weights(gates + (2 * k + tile) * tile_bytes + lane * 16);
    ELMO_UNROLL
    for (int r = 0; r < 4; ++r) to[tile].r[r] = words.word[r];
  }
}

// This warp's columns of its group.
struct Columns {
  const char* gates;
  int begin, end;

  ELMO_HD Columns(const Layout& layout, const GateShare& share, const char* weights, int units, int warp) {
    const int group = share.group(warp), part = share.part(warp);
    const bool busy = share.busy(warp) && group / 2 < units;
    gates = weights + size_t(busy ? group / 2 : 0) * size_t(layout.unit_bytes()) + layout.gate_offset(group % 2, 0);
    begin = busy ? layout.k_steps() * part / share.parts : 0;
    end = busy ? layout.k_steps() * (part + 1) / share.parts : 0;
  }
};

// The first weights of every warp, also without the step before.
template <int depth, class Block>
ELMO_HD void prefetch_gates(Block& block, const Layout& layout, const Cells& cells, const char* weights,
                            const GateShare& share, typename Block::template PerThread<Ahead<depth>>& ahead) {
  block.each_thread([&](int warp, int lane) {
    const Columns columns(layout, share, weights, cells.units, warp);
    ELMO_UNROLL
    for (int j = 0; j < depth; ++j)
      if (columns.begin + j < columns.end)
        load_ahead<depth>(block, columns.gates, columns.begin + j, lane, ahead.at(warp, lane).of[j]);
  });
}

// h of the block's lanes, as operands, into shared memory [lane, h_stride].
template <class O, class Block>
ELMO_HD void load_h(Block& block, const Direction& k, const Moment& now, int most_lanes, uint16_t* h, int h_stride) {
  const int chunks = k.layout.h_width() / 8, lanes = now.lanes(most_lanes), size = k.layout.projection;
  block.each_thread([&](int warp, int thread) {
    for (int at = warp * 32 + thread; at < lanes * chunks; at += threads) {
      const int lane = at / chunks, column = at % chunks * 8, of_call = now.first_lane + lane;
      Words4* to = reinterpret_cast<Words4*>(h + lane * h_stride + column);
      const bool fresh = is_reset(k, now, of_call);
      if (!fresh && !now.first) {
        *to = block.load_exchanged(reinterpret_cast<const Words4*>(
            k.h_operand[now.step & 1] + size_t(of_call) * size_t(k.layout.h_width()) + column));
        continue;
      }
      const float* from = fresh ? k.reset_h : k.h_first + size_t(of_call) * 2 * size_t(size);
      Words4 words;
      for (int j = 0; j < 4; ++j) {
        const int c = column + 2 * j;
        const uint32_t low = O::from(from && c < size ? from[c] : 0.0f);
        const uint32_t high = O::from(from && c + 1 < size ? from[c + 1] : 0.0f);
        words.word[j] = low | high << 16;
      }
      *to = words;
    }
  });
}

// The right operand of 16 columns and 8 lanes from shared memory.
ELMO_HD TileB right_tile(const uint16_t* operand, int stride, int column, int n, int lane) {
  struct alignas(8) Pair { uint32_t word[2]; };
  const int at = (n * tile_lanes + lane / 4) * stride + column + lane % 4 * 4;
  const Pair pair = *reinterpret_cast<const Pair*>(operand + at);
  return {{pair.word[0], pair.word[1]}};
}

// sums += weights * h. Weights come `depth` steps ahead of their product.
template <class O, int NT, int depth, class Block>
ELMO_HD void multiply_gates(Block& block, const Layout& layout, const Cells& cells, const char* weights,
                            const GateShare& share, const uint16_t* h, int h_stride,
                            typename Block::template PerThread<Ahead<depth>>& ahead,
                            typename Block::template PerThread<GateSums<NT>>& sums) {
  block.each_warp([&](int warp) {
    const Columns columns(layout, share, weights, cells.units, warp);
    block.converge();
    for (int first = columns.begin; first < columns.end; first += depth) {
      ELMO_UNROLL
      for (int j = 0; j < depth; ++j) {
        const int k = first + j;
        if (k >= columns.end) continue;
        ELMO_UNROLL
        for (int n = 0; n < NT; ++n) {
          ELMO_UNROLL
          for (int tile = 0; tile < 2; ++tile)
            block.template multiply<O>([&](int lane) -> TileC& { return sums.at(warp, lane).of[tile][n]; },
                                       [&](int lane) -> const TileA& { return ahead.at(warp, lane).of[j][tile]; },
                                       [&](int lane) { return right_tile(h, h_stride, 16 * k, n, lane); });
        }
        if (k + depth < columns.end)
          block.each_lane([&](int lane) {
            load_ahead<depth>(block, columns.gates, k + depth, lane, ahead.at(warp, lane).of[j]);
          });
      }
    }
  });
}

// Sums of the parts beyond the first go through shared memory [part - 1, group, 2 * NT, 32] and are added in order.
template <int NT, class Block>
ELMO_HD void join_gates(Block& block, const GateShare& share, char* shared,
                        typename Block::template PerThread<GateSums<NT>>& sums) {
  if (share.parts == 1) return;
  TileC* parts = reinterpret_cast<TileC*>(shared);
  block.each_thread([&](int warp, int lane) {
    if (!share.busy(warp) || share.part(warp) == 0) return;
    TileC* to = parts + (warp - share.groups) * 2 * NT * 32 + lane;
    ELMO_UNROLL
    for (int j = 0; j < 2 * NT; ++j) to[j * 32] = sums.at(warp, lane).of[j / NT][j % NT];
  });
  block.sync();
  block.each_thread([&](int warp, int lane) {
    if (share.part(warp) != 0) return;
    for (int part = 1; part < share.parts; ++part) {
      const TileC* from = parts + ((part - 1) * share.groups + warp) * 2 * NT * 32 + lane;
      ELMO_UNROLL
      for (int j = 0; j < 2 * NT; ++j) {
        const TileC more = from[j * 32];
        ELMO_UNROLL
        for (int r = 0; r < 4; ++r) sums.at(warp, lane).of[j / NT][j % NT].r[r] += more.r[r];
      }
    }
  });
}

// A new h of one lane: to the state, the output and the next step's operand.
template <class O>
ELMO_HD void emit(const Direction& k, const Moment& now, int lane, int column, float h) {
  const size_t width = 2 * size_t(k.layout.projection);
  k.h[size_t(lane) * width + column] = h;
  k.output[size_t(now.begin + lane) * width + column] = h;
  k.h_operand[(now.step + 1) & 1][size_t(lane) * size_t(k.layout.h_width()) + column] = O::from(h);
}

// Gates -> c, and m into shared memory [lane, m_stride], or straight out where there is no projection.
template <class O, int NT, class Block>
ELMO_HD void update_cells(Block& block, const Direction& k, const Moment& now, const Cells& cells,
                          const GateShare& share, uint16_t* m, int m_stride,
                          typename Block::template PerThread<GateSums<NT>>& sums) {
  block.each_thread([&](int warp, int lane) {
    const int group = share.group(warp);
    if (share.part(warp) != 0 || group / 2 >= cells.units) return;
    const int cell = group * group_cells + lane / 4, of_layer = cells.first_unit * unit_cells + cell;
    const bool there = of_layer < k.layout.dim;
    const GateSums<NT>& z = sums.at(warp, lane);
    ELMO_UNROLL
    for (int n = 0; n < NT; ++n) {
      ELMO_UNROLL
      for (int e = 0; e < 2; ++e) {
        const int in_tile = n * tile_lanes + lane % 4 * 2 + e, at = now.first_lane + in_tile;
        if (at >= now.live) continue;
        if (!there) {  // multiplies zero weights
          if (k.layout.projected()) m[in_tile * m_stride + cell] = 0;
          continue;
        }
        const bool fresh = is_reset(k, now, at);
        const float before = fresh ? (k.reset_c ? k.reset_c[of_layer] : 0.0f)
                                   : cells.c_before[size_t(in_tile) * size_t(cells.before_stride) + cell];
        const float input = sigmoid(z.of[0][n].r[e]) * tanhf(z.of[0][n].r[2 + e]);
        const float c = clipped(fmaf(sigmoid(z.of[1][n].r[e] + 1.0f), before, input), k.cell_clip);
        const float out = sigmoid(z.of[1][n].r[2 + e]) * tanhf(c);
        cells.c[size_t(in_tile) * size_t(cells.stride) + cell] = c;
        if (k.layout.projected())
          m[in_tile * m_stride + cell] = O::from(out);
        else
          emit<O>(k, now, at, of_layer, out);
      }
    }
  });
}

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
