// The parts of a time step in one thread: sums of the gates, cells, h.
#pragma once

#include "../projected_lstm_cuda.h"
#include "device.cuh"

namespace elmo_fast::cuda {

// The arguments of a kernel.
struct Launch : Call, Plan {
  SharedLayout at;
  uint16_t* operands;  // [2 parities, 2, h_parts, slots, h_stride]
  float* partials;     // [2, clusters, slots, h_width]
  Barrier* barriers;   // [2]
};

// One direction's view of a step. `size` and `next` are the batch sizes of this step and of the next, 0 after the last.
struct Step {
  int d, t, size, next;
};

// Polls until so many have arrived at a grid barrier.
ELMO_DEVICE void poll(const uint32_t* count, uint32_t target) {
  Deadline deadline;
  for (uint32_t polls = 1; load_acquire(count) < target; ++polls)
    if (polls % 32 == 0) deadline.check();
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
ELMO_DEVICE uint16_t first_operand(const Launch& p, int d, int slot, int column) {
  const float initial = initial_h_of(p, d, column);
  const bool there = column < p.layout.projection;
  const int64_t at = (int64_t(d) * p.slots + slot) * p.layout.projection + (there ? column : 0);
  return to_half(starts_at(p, 0, slot) ? initial : (there ? p.h_in[at] : 0.0f));
}

// Stores h = clip(sum of the clusters' partial sums, in order) of a pair of columns of a slot. Returns the pair as an
// operand of the next step, which is not read where the slot ends. `partials` are the first cluster's.
template <int at_once>
ELMO_DEVICE uint32_t finish_h(const Launch& p, const Step& now, const float* partials, int slot, int column) {
  const int width = p.layout.h_width(), clusters = p.blocks / p.cluster, stride = p.slots * width;
  const float* from = partials + size_t(slot) * size_t(width) + column;
  const int starts = p.meta[(int64_t(now.t + 1) * 3 + 2) * p.stride + slot];
  const float initial[2] = {initial_h_of(p, now.d, column), initial_h_of(p, now.d, column + 1)};
  float h[2] = {};
  int packed_row = 0;
  for (int first = 0; first < clusters; first += at_once) {
    float2 parts[at_once];
#pragma unroll
    for (int j = 0; j < at_once; ++j) parts[j] = load_exchanged(from + smaller(first + j, clusters - 1) * stride);
    packed_row = load_index(p.packed_rows + int64_t(now.t) * p.stride + slot);  // last: all arrive together
#pragma unroll
    for (int j = 0; j < at_once; ++j) {
      const bool there = first + j < clusters;
      h[0] += there ? parts[j].x : 0.0f, h[1] += there ? parts[j].y : 0.0f;
    }
  }
  for (float& value : h) value = clipped(value, p.proj_clip);
  for (int e = 0; e < 2; ++e)
    if (column + e < p.layout.projection) store_h(p, now, packed_row, slot, column + e, h[e]);
  return to_half(starts ? initial[0] : h[0]) | uint32_t(to_half(starts ? initial[1] : h[1])) << 16;
}

// A thread's cell, number lane / 4 of its warp's group, for slots 2 * (lane % 4) and 2 * (lane % 4) + 1 of NT tiles.
template <int NT>
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
        sums_[gate / 2][n].r[gate % 2 * 2 + e] =
            there ? fmaf(to_float(z_[n][e].gates[gate]), scale, bias_[gate]) : 0.0f;
    });
  }

  // sums += two tiles of weights, (i, j) and (f, o), times 16 columns of h.
  ELMO_DEVICE void multiply(const TileA (&a)[2], const uint16_t* h, int stride) {
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      const TileB b = right_tile(h + n * tile_slots * stride, stride, lane_);
      mma(sums_[0][n], a[0], b);
      mma(sums_[1][n], a[1], b);
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
      m[slot * m_stride + local_cell_] = there ? to_half(sigmoid(o) * tanh_of(next)) : uint16_t(0);
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

}  // namespace elmo_fast::cuda
