// The replay of a launch that gave up: what it would have done, for 8 slots of one direction in a block of their own,
// with all weights from L2. Waits for no other block.
#pragma once

#include "step.cuh"

namespace elmo_fast {
namespace cuda {

constexpr int replay_threads = 256;

// h of even and odd steps, then m, as operands: [8, stride].
struct ReplayShared {
  int h_stride, m_stride, size;
  ELMO_HD explicit ReplayShared(const Layout& layout)
      : h_stride(padded_columns(layout.h_width())), m_stride(padded_columns(layout.units() * unit_cells)),
        size(tile_slots * (2 * h_stride + m_stride) * 2) {}
};

template <class O>
class Replay {
 public:
  __device__ __forceinline__ Replay(const Launch& p, char* shared)
      : p_(p), at_(p.layout), d_(int(blockIdx.y)), first_slot_(int(blockIdx.x) * tile_slots), thread_(int(threadIdx.x)),
        warp_(thread_ / 32), lane_(thread_ % 32), weights_(direction_weights(p, d_)),
        h_(reinterpret_cast<uint16_t*>(shared)) {}

  __device__ __forceinline__ void run() {
    const int width = p_.layout.h_width();
    for (int i = thread_; i < tile_slots * width; i += replay_threads) {
      const int slot = first_slot_ + i / width;
      const uint16_t first = slot < p_.slots ? first_operand<O>(p_, d_, slot, i % width) : uint16_t(0);
      h(0)[i / width * at_.h_stride + i % width] = first;
    }
    for (int t = 0; t < p_.steps && first_slot_ < p_.batch_sizes[t]; ++t) {
      const Step now = {d_, t, p_.batch_sizes[t], t + 1 < p_.steps ? p_.batch_sizes[t + 1] : 0};
      __syncthreads();
      for (int group = warp_; group < 2 * p_.layout.units(); group += warps) update_group(now, group);
      __syncthreads();
      for (int tile = warp_; tile < p_.layout.p_tiles(); tile += warps) project_tile(now, tile);
    }
  }

 private:
  static constexpr int warps = replay_threads / 32;

  __device__ __forceinline__ uint16_t* h(int t) const { return h_ + t % 2 * tile_slots * at_.h_stride; }
  __device__ __forceinline__ uint16_t* m() const { return h_ + 2 * tile_slots * at_.h_stride; }

  // The thread's slot e of a tile.
  __device__ __forceinline__ int slot(int e) const { return first_slot_ + slot_of(0, e, lane_); }
  __device__ __forceinline__ int row_of(const Step& now, int e) const {
    return p_.meta[(int64_t(now.t) * 3 + d_) * p_.stride + smaller(slot(e), now.size - 1)];
  }
  __device__ __forceinline__ bool starts_next(const Step& now, int slot) const {
    return slot < now.next && starts_at(p_, now.t + 1, slot);
  }

  // The cells of a group. c waits for the next step in the state's memory.
  __device__ __forceinline__ void update_group(const Step& now, int group) {
    const char* record = weights_ + size_t(group / 2) * size_t(p_.layout.unit_bytes());
    const int cell = group * group_cells + lane_ / 4;
    const bool is_cell = cell < p_.layout.dim;
    float bias[4], c[1][2];
    for (int gate = 0; gate < 4; ++gate) bias[gate] = bias_of(p_, record, group % 2, gate, lane_);
    const float initial = p_.initial_c && is_cell ? p_.initial_c[d_ * p_.layout.dim + cell] : 0.0f;
    GateSums<1> sums;
    uint16_t z[1][2][4];
    load_inputs<1>(p_, d_, cell, [&](int, int e) { return row_of(now, e); }, z);
    begin_sums<O, 1>(
        p_, now, cell, bias, lane_, first_slot_, z,
        [&](int, int e) { return p_.scale ? p_.scale[int64_t(row_of(now, e)) * 2 + d_] : 1.0f; }, sums);
    for (int k = 0; k < p_.layout.k_steps(); ++k) {
      const char* from = record + p_.layout.gate_offset(group % 2, k) + lane_ * 16;
      const TileA a[2] = {load_weights(from), load_weights(from + tile_bytes)};
      multiply_gates<O, 1>(sums, a, h(now.t) + 16 * k, at_.h_stride, lane_);
    }
    float* state = p_.c + int64_t(d_) * p_.state_stride * p_.layout.dim + (is_cell ? cell : 0);
    if (now.t == 0) {
      first_cells<1>(p_, d_, cell, lane_, first_slot_, initial, c);
    } else {
      for (int e = 0; e < 2; ++e) {
        c[0][e] = is_cell && slot(e) < now.size ? state[int64_t(slot(e)) * p_.layout.dim] : 0.0f;
      }
    }
    const auto starts = [&](int, int e) { return starts_next(now, slot(e)); };
    update_cells<O, 1>(p_, now, cell, cell, lane_, first_slot_, sums, starts, initial, c, m(), at_.m_stride);
    for (int e = 0; e < 2; ++e)
      if (is_cell && slot(e) < now.next) state[int64_t(slot(e)) * p_.layout.dim] = c[0][e];
  }

  __device__ __forceinline__ void project_tile(const Step& now, int tile) {
    TileC sums = {};
    for (int unit = 0; unit < p_.layout.units(); ++unit)
      mma(sums, load_weights(weights_ + p_.layout.projection_offset(tile, unit) + lane_ * 16),
          right_tile(m() + unit * unit_cells, at_.m_stride, lane_), O());
    for (int r = 0; r < 4; ++r) {
      const int in_tile = slot_of(0, r % 2, lane_), slot = first_slot_ + in_tile;
      const int column = 16 * tile + lane_ / 4 + r / 2 * 8;
      const bool there = slot < now.size;
      const float value = there ? clipped(sums.r[r], p_.proj_clip) : 0.0f;
      if (there && column < p_.layout.projection)
        store_h(p_, now, p_.packed_rows[int64_t(now.t) * p_.stride + slot], slot, column, value);
      h(now.t + 1)[in_tile * at_.h_stride + column] =
          O::from(starts_next(now, slot) ? initial_h_of(p_, d_, column) : value);
    }
  }

  const Launch& p_;
  const ReplayShared at_;
  const int d_, first_slot_, thread_, warp_, lane_;
  const char* const weights_;
  uint16_t* const h_;
};

template <class O>
__global__ void __launch_bounds__(replay_threads, 1) replay_kernel(const __grid_constant__ Launch p) {
  extern __shared__ __align__(16) char shared[];
  if (load_relaxed(p.abort) == 0) return;
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) *p.aborts += 1;
  Replay<O>(p, shared).run();
}

}  // namespace cuda
}  // namespace elmo_fast
