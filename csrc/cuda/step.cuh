// The parts of a time step in one thread: sums of the gates, cells, h; and the replay of a launch that gave up.
#pragma once

#include "../projected_lstm_cuda.h"
#include "device.cuh"

namespace elmo_fast::cuda {

// The arguments of the kernels.
struct Launch : Call, Plan {
  SharedLayout at;
  uint16_t* operands;  // [2 parities, 2, h_parts, slots, h_stride]
  float* partials;     // [2, clusters, slots, h_width]
  Barrier* barriers;   // [2]
  uint32_t* abort;
  bool multicasts;  // else each block copies all of h
};

// One direction's view of a step. `size` and `next` are the batch sizes of this step and of the next, 0 after the last.
struct Step {
  int d, t, size, next;
};

// Polls until so many have arrived. False: the launch gives up, and then every block does so at this barrier.
ELMO_DEVICE bool poll(const Launch& p, uint32_t* count, uint32_t target) {
  constexpr uint32_t gave_up = 1u << 31;
  int64_t begin = 0;
  for (uint32_t polls = 1;; ++polls) {
    const uint32_t found = load_acquire(count);
    if (found >= target) return found < gave_up;
    if (polls % 32 != 0) continue;
    const int64_t now = nanoseconds_now();
    if (begin == 0) begin = now;
    if (now - begin > p.timeout_ns) store_relaxed(p.abort, 1u);
    if (load_relaxed(p.abort) != 0) compare_and_swap(count, found, found | gave_up);
  }
}

ELMO_HD int slot_of(int n, int e, int lane) { return n * tile_slots + lane % 4 * 2 + e; }

ELMO_DEVICE const char* direction_weights(const Launch& p, int d) {
  return p.packed + size_t(d) * p.layout.direction_bytes();
}

// The bias of a gate in a unit's record, for cell lane / 4 of a group.
ELMO_DEVICE float bias_of(const Launch& p, const char* record, int group, int gate, int lane) {
  return reinterpret_cast<const float*>(record + p.layout.bias_offset())[(group * 4 + gate) * group_cells + lane / 4];
}

ELMO_DEVICE bool starts_at(const Launch& p, int t, int slot) {
  return p.meta[(int64_t(t) * 3 + 2) * p.stride + slot] != 0;
}

// Stores a clipped h in the output and, after the slot's last step, in the state.
ELMO_DEVICE void store_h(const Launch& p, const Step& now, int packed_row, int slot, int column, float h) {
  const int width = p.layout.projection;
  p.output[(int64_t(packed_row) * 2 + now.d) * width + column] = h;
  if (slot >= now.next) p.h[(int64_t(now.d) * p.state_stride + slot) * width + column] = h;
}

ELMO_DEVICE float initial_h_of(const Launch& p, int d, int column) {
  return p.initial_h && column < p.layout.projection ? p.initial_h[d * p.layout.projection + column] : 0.0f;
}

// h before step 0, as an operand.
template <class O>
ELMO_DEVICE uint16_t first_operand(const Launch& p, int d, int slot, int column) {
  const float initial = initial_h_of(p, d, column);
  const bool there = column < p.layout.projection;
  const int64_t at = (int64_t(d) * p.slots + slot) * p.layout.projection + (there ? column : 0);
  return O::from(starts_at(p, 0, slot) ? initial : (there ? p.h_in[at] : 0.0f));
}

// A thread's cell, number lane / 4 of its warp's group, for slots 2 * (lane % 4) and 2 * (lane % 4) + 1 of NT tiles.
template <class O, int NT>
class Cells {
 public:
  ELMO_DEVICE Cells(const Launch& p, int d, int first_cell, int warp, int lane)
      : p_(p), d_(d), lane_(lane), local_cell_(warp * group_cells + lane / 4), cell_(first_cell + local_cell_) {}

  // Loads the biases and c before step 0.
  ELMO_DEVICE void begin(const char* record, int group) {
    for (int gate = 0; gate < 4; ++gate) bias_[gate] = bias_of(p_, record, group, gate, lane_);
    initial_c_ = p_.initial_c && is_cell() ? p_.initial_c[d_ * p_.layout.dim + cell_] : 0.0f;
    for_slots([&](int n, int e, int slot) {
      const bool there = is_cell() && slot < p_.slots;
      const int64_t at = (int64_t(d_) * p_.slots + (there ? slot : 0)) * p_.layout.dim + (there ? cell_ : 0);
      c_[n][e] = there && starts_at(p_, 0, slot) ? initial_c_ : (there ? p_.c_in[at] : 0.0f);
    });
  }

  // Issues the loads of z of each slot from its row; does not wait for them.
  ELMO_DEVICE void load_inputs(const int* rows) {
    const uint16_t* of_cell = p_.z + (is_cell() ? cell_ : 0) * 4;
    for_slots([&](int n, int e, int slot) {
      z_[n][e] = load_input(of_cell + (int64_t(rows[slot]) * 2 + d_) * 4 * p_.layout.dim);
    });
  }

  // Initializes the sums to bias + scale * z.
  ELMO_DEVICE void begin_sums(const Step& now, const float* scales) {
    for_slots([&](int n, int e, int slot) {
      const bool there = is_cell() && slot < now.size;
      const float scale = scales[slot];
#pragma unroll
      for (int gate = 0; gate < 4; ++gate)
        sums_[gate / 2][n].r[gate % 2 * 2 + e] = there ? fmaf(O::to(z_[n][e].gates[gate]), scale, bias_[gate]) : 0.0f;
    });
  }

  // sums += two tiles of weights, (i, j) and (f, o), times 16 columns of h.
  ELMO_DEVICE void multiply(const TileA (&a)[2], const uint16_t* h, int stride) {
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      const TileB b = right_tile(h + n * tile_slots * stride, stride, lane_);
      mma(sums_[0][n], a[0], b, O());
      mma(sums_[1][n], a[1], b, O());
    }
  }

  // Updates c for the next step, stores final c in the state and m in shared memory [slot, m_stride]. `starts`: whether
  // a slot's sequence starts at the next step.
  ELMO_DEVICE void update(const Step& now, const int* starts, uint16_t* m, int m_stride) {
    float* state = p_.c + int64_t(d_) * p_.state_stride * p_.layout.dim + cell_;
    for_slots([&](int n, int e, int slot) {
      const float i = sums_[0][n].r[e], j = sums_[0][n].r[2 + e];
      const float f = sums_[1][n].r[e], o = sums_[1][n].r[2 + e];
      const float next = clipped(fmaf(sigmoid(f + 1.0f), c_[n][e], sigmoid(i) * tanh_of(j)), p_.cell_clip);
      const bool there = is_cell() && slot < now.size;
      m[slot * m_stride + local_cell_] = there ? O::from(sigmoid(o) * tanh_of(next)) : uint16_t(0);
      if (there && slot >= now.next) state[int64_t(slot) * p_.layout.dim] = next;
      c_[n][e] = starts[slot] ? initial_c_ : next;
    });
  }

 private:
  ELMO_DEVICE bool is_cell() const { return cell_ < p_.layout.dim; }

  template <class F>
  ELMO_DEVICE void for_slots(F&& f) const {
#pragma unroll
    for (int n = 0; n < NT; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) f(n, e, slot_of(n, e, lane_));
  }

  const Launch& p_;
  const int d_, lane_, local_cell_, cell_;
  float bias_[4], initial_c_, c_[NT][2];
  Inputs z_[NT][2];
  TileC sums_[2][NT];
};

// ---- replay: computes slowly what a launch that gave up would have computed; a block runs a slot in one direction and
// waits for no other block

constexpr int replay_threads = 256;

// Bytes of shared memory of a block: h, then m, as operands.
ELMO_HD size_t replay_shared(const Layout& of) { return size_t(of.h_width() + of.units() * unit_cells) * 2; }

// sum + a row of a tile of weights times 16 values.
template <class O>
ELMO_DEVICE float multiply_row(float sum, const char* tile, int row, const uint16_t* values) {
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
#pragma unroll 1
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
        z[gate] = fmaf(O::to(p.z[(row * dim + cell) * 4 + gate]), p.scale ? p.scale[row] : 1.0f,
                       bias_of(p, record, group, gate, in_group * 4));
        for (int k = 0; k < p.layout.k_steps(); ++k)
          z[gate] = multiply_row<O>(z[gate], record + p.layout.gate_offset(group, k) + gate / 2 * tile_bytes,
                                    gate % 2 * 8 + in_group, h + 16 * k);
      }
      // c is kept in the state's memory between steps
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

}  // namespace elmo_fast::cuda
