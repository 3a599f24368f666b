// The parts of a time step, one thread's view: sums of the gates, cells, h; and the replay of a launch that gave up.
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
                                           const uint16_t (&z)[NT][2][4], Scale&& scale, GateSums<NT>& sums) {
#pragma unroll
  for (int n = 0; n < NT; ++n)
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const bool there = cell < p.layout.dim && slot_of(n, e, lane) < now.size;
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
                                             const GateSums<NT>& sums, Starts&& starts, float initial,
                                             float (&c)[NT][2], uint16_t* m, int m_stride) {
  const bool is_cell = cell < p.layout.dim;
  float* state = p.c + int64_t(now.d) * p.state_stride * p.layout.dim + cell;
#pragma unroll
  for (int n = 0; n < NT; ++n)
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int slot = slot_of(n, e, lane);
      const float i = sums.of[0][n].r[e], j = sums.of[0][n].r[2 + e];
      const float f = sums.of[1][n].r[e], o = sums.of[1][n].r[2 + e];
      const float next = clipped(fmaf(sigmoid(f + 1.0f), c[n][e], sigmoid(i) * tanh_of(j)), p.cell_clip);
      const bool there = is_cell && slot < now.size;
      m[slot * m_stride + local_cell] = there ? O::from(sigmoid(o) * tanh_of(next)) : uint16_t(0);
      if (there && slot >= now.next) state[int64_t(slot) * p.layout.dim] = next;
      c[n][e] = starts(n, e) ? initial : next;
    }
}

// c before step 0.
template <int NT>
__device__ __forceinline__ void first_cells(const Launch& p, int d, int cell, int lane, float initial,
                                            float (&c)[NT][2]) {
#pragma unroll
  for (int n = 0; n < NT; ++n)
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int slot = slot_of(n, e, lane);
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

// ---- what a launch that gave up would have done, slowly: a slot of one direction in a block of its own, which waits
// for no other block

constexpr int replay_threads = 256;

// h, then m, as operands.
ELMO_HD size_t replay_shared(const Layout& of) { return size_t(of.h_width() + of.units() * unit_cells) * 2; }

// sum + a row of a tile of weights times 16 values.
template <class O>
__device__ __forceinline__ float multiply_row(float sum, const char* tile, int row, const uint16_t* values) {
  const uint16_t* weights = reinterpret_cast<const uint16_t*>(tile) + row % 8 * 32 + row / 8 * 2;
  for (int k = 0; k < 16; ++k) sum = fmaf(O::to(weights[k / 4 * 8 + k / 2 % 2 * 4 + k % 2]), O::to(values[k]), sum);
  return sum;
}

template <class O>
__global__ void __launch_bounds__(replay_threads, 1) replay_kernel(const __grid_constant__ Launch p) {
  extern __shared__ __align__(16) char shared[];
  if (load_relaxed(p.abort) == 0) return;
  const int slot = int(blockIdx.x), d = int(blockIdx.y), thread = int(threadIdx.x);
  if (slot == 0 && d == 0 && thread == 0) *p.aborts += 1;
  const int dim = p.layout.dim, width = p.layout.h_width(), units = p.layout.units();
  const char* weights = direction_weights(p, d);
  uint16_t* h = reinterpret_cast<uint16_t*>(shared);
  uint16_t* m = h + width;
  for (int column = thread; column < width; column += replay_threads) h[column] = first_operand<O>(p, d, slot, column);
  for (int t = 0; t < p.steps && slot < p.batch_sizes[t]; ++t) {
    const Step now = {d, t, p.batch_sizes[t], t + 1 < p.steps ? p.batch_sizes[t + 1] : 0};
    const bool starts = slot < now.next && starts_at(p, t + 1, slot);
    const int64_t row = int64_t(p.meta[(int64_t(t) * 3 + d) * p.stride + slot]) * 2 + d;
    __syncthreads();
    for (int cell = thread; cell < units * unit_cells; cell += replay_threads) {
      const char* record = weights + size_t(cell / unit_cells) * size_t(p.layout.unit_bytes());
      const int group = cell / group_cells % 2, in_group = cell % group_cells;
      m[cell] = 0;
      if (cell >= dim) continue;
      float z[4];
      for (int gate = 0; gate < 4; ++gate) {
        z[gate] = fmaf(O::to(p.z[(row * 4 + gate) * dim + cell]), p.scale ? p.scale[row] : 1.0f,
                       bias_of(p, record, group, gate, in_group * 4));
        for (int k = 0; k < p.layout.k_steps(); ++k)
          z[gate] = multiply_row<O>(z[gate], record + p.layout.gate_offset(group, k) + gate / 2 * tile_bytes,
                                    gate % 2 * 8 + in_group, h + 16 * k);
      }
      // c waits for the next step in the state's memory
      float* state = p.c + (int64_t(d) * p.state_stride + slot) * dim + cell;
      const float initial = p.initial_c ? p.initial_c[d * dim + cell] : 0.0f;
      const float first = starts_at(p, 0, slot) ? initial : p.c_in[(int64_t(d) * p.slots + slot) * dim + cell];
      const float c =
          clipped(fmaf(sigmoid(z[2] + 1.0f), t ? *state : first, sigmoid(z[0]) * tanh_of(z[1])), p.cell_clip);
      m[cell] = O::from(sigmoid(z[3]) * tanh_of(c));
      *state = starts ? initial : c;
    }
    __syncthreads();
    for (int column = thread; column < width; column += replay_threads) {
      float sum = 0.0f;
      for (int unit = 0; unit < units; ++unit)
        sum = multiply_row<O>(sum, weights + p.layout.projection_offset(column / 16, unit), column % 16, m + 16 * unit);
      const float value = clipped(sum, p.proj_clip);
      if (column < p.layout.projection)
        store_h(p, now, p.packed_rows[int64_t(t) * p.stride + slot], slot, column, value);
      h[column] = O::from(starts ? initial_h_of(p, d, column) : value);
    }
  }
}

}  // namespace cuda
}  // namespace elmo_fast
