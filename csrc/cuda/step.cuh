// The parts of a time step, one thread's view: sums of the gates, cells, projection, h. Behind them their plain use,
// the replay of a launch that gave up.
#pragma once

#include "../projected_lstm_cuda.h"
#include "device.cuh"

namespace elmo_fast {
namespace cuda {

// What the blocks of a launch read.
struct Launch : Call, Plan {
  SharedLayout at;
  uint16_t* operands;  // [2 parities, 2, slots, h_width]
  float* partials;     // [2, clusters, slots, h_width]
  Barrier* barriers;   // [2]
  uint32_t* abort;
};

// One direction's view of a step. `size` and `next` are the batch sizes of this step and of the next, 0 after the last.
struct Step {
  int d, t, size, next;
};

// Until `reached`. False: the launch is given up.
template <class Reached>
__device__ __forceinline__ bool poll(const Launch& p, Reached&& reached) {
  int64_t begin = 0;
  for (uint32_t count = 1; !reached(); ++count) {
    if (count % 32 != 0) continue;
    const int64_t now = nanoseconds_now();
    if (begin == 0) begin = now;
    if (now - begin > p.timeout_ns) store_relaxed(p.abort, 1u);
    if (load_relaxed(p.abort) != 0) return false;
  }
  return true;
}

// (i, j) and (f, o) of cell lane / 4 of a group, slots 2 * (lane % 4) and the next of each tile.
template <int NT>
struct GateSums {
  TileC of[2][NT];
};

ELMO_HD int slot_of(int n, int e, int lane) { return n * tile_slots + lane % 4 * 2 + e; }

__device__ __forceinline__ const char* direction_weights(const Launch& p, int d) {
  return p.packed + size_t(d) * p.layout.direction_bytes();
}

// Of a unit's record: the bias of a gate for cell lane / 4 of a group.
__device__ __forceinline__ float bias_of(const Launch& p, const char* record, int group, int gate, int lane) {
  return reinterpret_cast<const float*>(record + p.layout.bias_offset())[(group * 4 + gate) * group_cells + lane / 4];
}

__device__ __forceinline__ bool starts_at(const Launch& p, int t, int slot) {
  return p.meta[(int64_t(t) * 3 + 2) * p.stride + slot] != 0;
}

// z of the thread's cell and slots: `row(n, e)` is the row of slot_of(n, e, lane). Nothing is waited for.
template <int NT, class Row>
__device__ __forceinline__ void load_inputs(const Launch& p, int d, int cell, Row&& row, uint16_t (&z)[NT][2][4]) {
  const uint16_t* of_cell = p.z + (cell < p.layout.dim ? cell : 0);
#pragma unroll
  for (int n = 0; n < NT; ++n)
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const uint16_t* from = of_cell + (int64_t(row(n, e)) * 2 + d) * 4 * p.layout.dim;
#pragma unroll
      for (int gate = 0; gate < 4; ++gate) z[n][e][gate] = load_input(from + int64_t(gate) * p.layout.dim);
    }
}

// Sums begin as bias + scale * z.
template <class O, int NT, class Scale>
__device__ __forceinline__ void begin_sums(const Launch& p, const Step& now, int cell, const float (&bias)[4], int lane,
                                           int first_slot, const uint16_t (&z)[NT][2][4], Scale&& scale,
                                           GateSums<NT>& sums) {
#pragma unroll
  for (int n = 0; n < NT; ++n)
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const bool there = cell < p.layout.dim && first_slot + slot_of(n, e, lane) < now.size;
      const float of_slot = scale(n, e);
#pragma unroll
      for (int gate = 0; gate < 4; ++gate)
        sums.of[gate / 2][n].r[gate % 2 * 2 + e] = there ? fmaf(O::to(z[n][e][gate]), of_slot, bias[gate]) : 0.0f;
    }
}

// sums += two tiles of weights times 16 columns of h.
template <class O, int NT>
__device__ __forceinline__ void multiply_gates(GateSums<NT>& sums, const TileA (&a)[2], const uint16_t* h, int stride,
                                               int lane) {
#pragma unroll
  for (int n = 0; n < NT; ++n) {
    const TileB b = right_tile(h + n * tile_slots * stride, stride, lane);
    mma(sums.of[0][n], a[0], b, O());
    mma(sums.of[1][n], a[1], b, O());
  }
}

// The cells of a group: c to what the next step reads, final c to the state, m into shared memory [slot, m_stride].
// Where `starts(n, e)`, a sequence starts at the next step, c is `initial` then.
template <class O, int NT, class Starts>
__device__ __forceinline__ void update_cells(const Launch& p, const Step& now, int cell, int local_cell, int lane,
                                             int first_slot, const GateSums<NT>& sums, Starts&& starts, float initial,
                                             float (&c)[NT][2], uint16_t* m, int m_stride) {
  const bool is_cell = cell < p.layout.dim;
  float* state = p.c + int64_t(now.d) * p.state_stride * p.layout.dim + cell;
#pragma unroll
  for (int n = 0; n < NT; ++n)
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int in_tile = slot_of(n, e, lane), slot = first_slot + in_tile;
      const float i = sums.of[0][n].r[e], j = sums.of[0][n].r[2 + e];
      const float f = sums.of[1][n].r[e], o = sums.of[1][n].r[2 + e];
      const float next = clipped(fmaf(sigmoid(f + 1.0f), c[n][e], sigmoid(i) * tanh_of(j)), p.cell_clip);
      const bool there = is_cell && slot < now.size;
      m[in_tile * m_stride + local_cell] = there ? O::from(sigmoid(o) * tanh_of(next)) : uint16_t(0);
      if (there && slot >= now.next) state[int64_t(slot) * p.layout.dim] = next;
      c[n][e] = starts(n, e) ? initial : next;
    }
}

// c before step 0.
template <int NT>
__device__ __forceinline__ void first_cells(const Launch& p, int d, int cell, int lane, int first_slot, float initial,
                                            float (&c)[NT][2]) {
#pragma unroll
  for (int n = 0; n < NT; ++n)
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int slot = first_slot + slot_of(n, e, lane);
      const bool there = cell < p.layout.dim && slot < p.slots;
      const int64_t at = (int64_t(d) * p.slots + (there ? slot : 0)) * p.layout.dim + (there ? cell : 0);
      c[n][e] = there && starts_at(p, 0, slot) ? initial : (there ? p.c_in[at] : 0.0f);
    }
}

// A clipped h goes to the output and, after the slot's last step, to the state.
__device__ __forceinline__ void store_h(const Launch& p, const Step& now, int packed_row, int slot, int column,
                                        float h) {
  const int width = p.layout.projection;
  p.output[(int64_t(packed_row) * 2 + now.d) * width + column] = h;
  if (slot >= now.next) p.h[(int64_t(now.d) * p.state_stride + slot) * width + column] = h;
}

__device__ __forceinline__ float initial_h_of(const Launch& p, int d, int column) {
  return p.initial_h && column < p.layout.projection ? p.initial_h[d * p.layout.projection + column] : 0.0f;
}

// h before step 0, as an operand.
template <class O>
__device__ __forceinline__ uint16_t first_operand(const Launch& p, int d, int slot, int column) {
  const float initial = initial_h_of(p, d, column);
  const bool there = column < p.layout.projection;
  const int64_t at = (int64_t(d) * p.slots + slot) * p.layout.projection + (there ? column : 0);
  return O::from(starts_at(p, 0, slot) ? initial : (there ? p.h_in[at] : 0.0f));
}

// ---- what a launch that gave up would have done, for 8 slots of one direction in a block of their own: all weights
// come from L2, and nothing waits for another block

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
