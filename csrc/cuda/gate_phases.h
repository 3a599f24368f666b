// The gates of a step, up to the new c and m. Both tiers run these phases (phase_types.h).
#pragma once

#include "phase_types.h"

namespace elmo_fast {
namespace cuda {

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

}  // namespace cuda
}  // namespace elmo_fast
