// All steps of a layer in one cooperative launch.
#pragma once

#include "step.cuh"

namespace elmo_fast::cuda {

// One direction in one block: its warps, a group of cells each, and its part of the shared memory. Template arguments
// as in Instance.
template <int NT, int R, int depth>
class Team {
  static constexpr bool take_turns = double_buffered(NT);

 public:
  ELMO_DEVICE Team(const Launch& p, char* shared)
      : p_(p), threads_(int(blockDim.x) / 2), d_(int(threadIdx.x) >= threads_),
        thread_(int(threadIdx.x) - d_ * threads_), warp_(thread_ / 32), lane_(thread_ % 32), index_(int(blockIdx.x)),
        rank_(index_ % p.cluster), shared_(shared + d_ * p.at.team),
        cells_(p, d_, index_ * p.units_per_block * unit_cells, warp_, lane_) {
    const int first_unit = index_ * p.units_per_block;
    const int unit = warp_ / 2 < present_units(first_unit, p.units_per_block) ? first_unit + warp_ / 2 : 0;
    record_ = direction_weights(p, d_) + size_t(unit) * size_t(p.layout.unit_bytes());
  }

  // Loads resident weights and the initial state, and stores the block's part of h before step 0 for all blocks.
  ELMO_DEVICE void begin() {
#pragma unroll
    for (int k = 0; k < R; ++k)
      if (k < p_.layout.k_steps()) fetch(k, kept_[k]);
    const char* gates = record_ + p_.layout.gate_offset(warp_ % 2, register_steps()) + lane_ * 16;
    for (int at = 0; at < 2 * p_.shared_steps; ++at)
      copy_async(shared_gates() + at * tile_bytes, gates + at * tile_bytes, true);
    if (p_.projection_resident) keep_projection();
    cells_.begin(record_, warp_ % 2);
    if (in_cluster()) begin_cluster();
    const int width = p_.layout.h_width();
    for (int at = index_ * threads_ + thread_; at < p_.slots * width; at += p_.blocks * threads_)
      *operand(0, at / width, at % width) = first_operand(p_, d_, at / width, at % width);
    wait_for_copies();
    if (in_cluster()) fence_shared(), fence_global();
    arrive();
  }

  ELMO_DEVICE void run() {
    Step now = {d_, 0, 0, p_.batch_sizes[0]};
    for (; now.t < p_.steps; ++now.t) {
      now.size = now.next;
      now.next = now.t + 1 < p_.steps ? p_.batch_sizes[smaller(now.t + 1, p_.steps - 1)] : 0;
      step(now);
    }
  }

 private:
  ELMO_DEVICE int present_units(int first, int count) const {
    return larger(0, smaller(count, p_.layout.units() - first));
  }
  ELMO_DEVICE int register_steps() const { return smaller(R, p_.layout.k_steps()); }
  ELMO_DEVICE char* shared_gates() const { return shared_ + warp_ * p_.shared_steps * 2 * tile_bytes + lane_ * 16; }
  ELMO_DEVICE uint16_t* halves(int offset) const { return reinterpret_cast<uint16_t*>(shared_ + offset); }
  // A column of a slot of h before step t.
  ELMO_DEVICE uint16_t* operand(int t, int slot, int column) const {
    const int part = take_turns ? column / part_columns : 0;
    const int row = (((t & 1) * 2 + d_) * p_.at.h_parts + part) * p_.slots + slot;
    return p_.operands + size_t(row) * size_t(p_.at.h_stride) + (column - part * part_columns);
  }
  ELMO_DEVICE float* partials(int cluster) const {
    return p_.partials + (size_t(d_) * size_t(p_.blocks / p_.cluster) + size_t(cluster)) * size_t(p_.slots) *
                             size_t(p_.layout.h_width());
  }
  ELMO_DEVICE void sync() const { sync_threads(1 + d_, threads_); }

  // ---- barriers ----

  ELMO_DEVICE void arrive() {
    sync();
    if (thread_ == 0) add_release(&p_.barriers[d_].count);
    target_ += uint32_t(p_.blocks);
  }

  ELMO_DEVICE void wait() {
    if (thread_ == 0) poll(&p_.barriers[d_].count, target_);
    sync();
  }

  // ---- the cluster ----

  static constexpr int stages = take_turns ? 2 : 1;

  ELMO_DEVICE bool in_cluster() const { return has_clusters && p_.cluster > 1; }
  ELMO_DEVICE PhaseBarrier* barrier(int at) const {
    return reinterpret_cast<PhaseBarrier*>(shared_ + p_.at.barriers) + at;
  }
  ELMO_DEVICE PhaseBarrier* copied(int part) const { return barrier(part % stages); }    // a part of h is there
  ELMO_DEVICE PhaseBarrier* read(int part) const { return barrier(2 + part % stages); }  // by all blocks of the cluster
  ELMO_DEVICE PhaseBarrier* gathered() const { return barrier(4); }  // m of all these blocks is there
  // Of the phases of both barriers of a part in the next step or, once it is read, of those that ended.
  ELMO_DEVICE uint32_t parity(int part) const { return parities_ >> part % stages & 1; }

  // Initializes the barriers, and h in shared memory: multicasts write rows of slots that have not ended alone.
  ELMO_DEVICE void begin_cluster() {
    if (thread_ == 0) {
      for (int part = 0; part < stages; ++part) {
        begin_phases(copied(part), 1);
        begin_phases(read(part), p_.cluster * (threads_ / 32));
      }
      begin_phases(gathered(), 1);
      publish_barriers();
    }
    for (int at = p_.at.h + thread_ * 16; at < p_.at.m; at += threads_ * 16) store_shared(shared_ + at, uint4());
  }

  // One thread: copies the block's share of the rows of a part of h to all blocks, and expects that of the others.
  ELMO_DEVICE void copy_part(const Step& now, int part) {
    const int share = divided_up(now.size, p_.cluster), first = rank_ * share, row_bytes = p_.at.h_stride * 2;
    arrive_and_expect(copied(part), now.size * row_bytes);
    if (first >= now.size) return;
    uint16_t* to = staged(part * part_steps) + first * p_.at.h_stride;
    const uint16_t* from = operand(now.t, first, part * part_columns);
    multicast(to, from, smaller(share, now.size - first) * row_bytes, copied(part), p_.cluster);
  }

  // Called by a warp after its last product with a part. The products have waited for their loads, as a lint over the
  // machine code demands (benchmarks/gpu/read_sass.py); the fence would wait for loads of weights as well.
  ELMO_DEVICE void release(int part) {
#ifdef ELMO_FAST_FENCED_READS
    fence_shared();
#endif
    __syncwarp();
    if (lane_ < p_.cluster) arrive_remote(remote_address(read(part), lane_));
    parities_ ^= 1u << part % stages;
  }

  // Stores m in every block of the cluster, over h, as rows [slot, gathered_stride], and waits for the others' m.
  ELMO_DEVICE void gather_m(const Step& now) {
    const int words = p_.units_per_block * unit_cells / 8, column = thread_ % words * 8;
    const uint16_t* m = halves(p_.at.m) + column;
    const uint16_t* to = halves(p_.at.h) + rank_ * words * 8 + column;
    if (thread_ == 0) arrive_and_expect(gathered(), p_.cluster * now.size * words * 16);
    wait_for_phase(read(p_.at.h_parts - 1), parity(p_.at.h_parts - 1) ^ 1);
    for (int slot = thread_ / words; slot < now.size; slot += 32) {
      const uint4 of_slot = *reinterpret_cast<const uint4*>(m + slot * p_.at.m_stride);
#pragma unroll 4
      for (int rank = 0; rank < p_.cluster; ++rank)
        store_remote(remote_address(to + slot * p_.at.gathered_stride, rank), of_slot,
                     remote_address(gathered(), rank));
    }
    wait_for_phase<true>(gathered(), now.t & 1);
  }

  // ---- a step ----

  ELMO_DEVICE void step(const Step& now) {
    read_inputs(now);
    wait();
    const int k_steps = p_.layout.k_steps(), streamed = register_steps() + p_.shared_steps;
    if (!in_cluster()) {
      for (int part = 0; part < (take_turns ? 1 : divided_up(k_steps, part_steps)); ++part) stage(now, part);
    } else if (thread_ == 0) {
      fence_global();
      for (int part = 0; part < smaller(stages, p_.at.h_parts); ++part) copy_part(now, part);
    }
    cells_.begin_sums(now, slots().scale);
#pragma unroll
    for (int j = 0; j < depth; ++j)
      if (streamed + j < k_steps) fetch(streamed + j, ahead_[j]);
    gates(now);
    cells_.update(now, slots().starts, halves(p_.at.m), p_.at.m_stride);
    sync();
    if (in_cluster()) gather_m(now);
    project(now);
    if (in_cluster()) fence_shared();
    arrive();
    const int pairs = p_.layout.h_width() / 2;  // of columns
    wait();
    for (int at = index_ * threads_ + thread_; at < now.size * pairs; at += p_.blocks * threads_) {
      const int slot = at / pairs, column = at % pairs * 2;
      uint16_t* to = operand(now.t + 1, slot, column);
      *reinterpret_cast<uint32_t*>(to) = finish_h<(R > 0 ? 16 : 8)>(p_, now, partials(0), slot, column);
    }
    if (in_cluster()) fence_global();
    if (now.t + 1 < p_.steps) arrive();
  }

  // Values of the slots in a step, shared by all threads of the team.
  struct Slots {
    int row[most_slots], starts[most_slots];  // row of z; whether a sequence starts at the next step
    float scale[most_slots];
  };
  ELMO_DEVICE Slots& slots() const { return *reinterpret_cast<Slots*>(shared_ + p_.at.slots); }

  // Issues the loads of input projections; scales and starts are readable after the next barrier.
  ELMO_DEVICE void read_inputs(const Step& now) {
    const int slot = smaller(thread_, now.size - 1);
    int row = 0;
    if (thread_ < NT * tile_slots) {
      row = p_.meta[(int64_t(now.t) * 3 + d_) * p_.stride + slot];
      const int starts = p_.meta[(int64_t(now.t + 1) * 3 + 2) * p_.stride + slot];
      slots().row[thread_] = row;
      slots().starts[thread_] = starts && thread_ < now.next;
    }
    sync();
    cells_.load_inputs(slots().row);
    if (thread_ < NT * tile_slots) slots().scale[thread_] = p_.scale ? p_.scale[int64_t(row) * 2 + d_] : 1.0f;
  }

  ELMO_DEVICE void fetch(int k, TileA (&a)[2]) const {
    for (int tile = 0; tile < 2; ++tile)
      a[tile] = load_weights(record_ + p_.layout.gate_offset(warp_ % 2, k) + tile * tile_bytes + lane_ * 16);
  }

  // Starts to copy a part of h, 8 k-steps: 16 threads per slot, 16 bytes each.
  ELMO_DEVICE void stage(const Step& now, int part) {
    const int column = thread_ % 16 * 8, slots_at_once = threads_ / 16;
    if (part * part_columns + column >= p_.layout.h_width()) return;
    const uint16_t* from = operand(now.t, 0, part * part_columns + column);
    uint16_t* to = staged(part * part_steps) + column;
#pragma unroll(R > 0 && NT > 2 ? 4 : 1)
    for (int slot = thread_ / 16; slot < NT * tile_slots; slot += slots_at_once)
      copy_async(to + slot * p_.at.h_stride, from + smaller(slot, now.size - 1) * p_.at.h_stride, slot < now.size);
  }

  // Called before the product of k-step k; with double buffering, waits for its part and starts to copy the next part.
  // In a cluster one thread does so some k-steps later, when the other blocks have read what it overwrites.
  ELMO_DEVICE void enter(const Step& now, int k) {
    if (!take_turns) return;
    const int part = k / part_steps, into = k % part_steps, next = part + 1;
    if (!in_cluster()) {
      if (into != 0) return;
      wait_for_copies();
      sync();
      stage(now, next);
    } else if (into == 0) {
      if (part > 0) release(part - 1);
      wait_for_phase(copied(part), parity(part));
    } else if (into == 2 && thread_ == 0 && next >= stages && next < p_.at.h_parts) {
      wait_for_phase(read(next), parity(next) ^ 1);
      copy_part(now, next);
    }
  }

  // Slot 0 of 16 columns of h in shared memory.
  ELMO_DEVICE uint16_t* staged(int k) const {
    const int into = take_turns ? k / part_steps % 2 * NT * tile_slots * p_.at.h_stride + k % part_steps * 16 : k * 16;
    return halves(p_.at.h) + into;
  }

  ELMO_DEVICE void gates(const Step& now) {
    const int k_steps = p_.layout.k_steps(), in_registers = register_steps();
    if (!take_turns && in_cluster()) {
      wait_for_phase(copied(0), parity(0));
    } else if (!take_turns) {
      wait_for_copies();
      sync();
    }
#pragma unroll
    for (int k = 0; k < R; ++k) {
      if (k >= k_steps) break;
      enter(now, k);
      cells_.multiply(kept_[k], staged(k), p_.at.h_stride);
    }
    const char* from = shared_gates();
    for (int k = in_registers; k < in_registers + p_.shared_steps; ++k, from += 2 * tile_bytes) {
      enter(now, k);
      const TileA a[2] = {load_shared_weights(from), load_shared_weights(from + tile_bytes)};
      cells_.multiply(a, staged(k), p_.at.h_stride);
    }
    for (int first = in_registers + p_.shared_steps; first < k_steps; first += depth) {
#pragma unroll
      for (int j = 0; j < depth; ++j) {
        const int k = first + j;
        if (k >= k_steps) break;
        enter(now, k);
        cells_.multiply(ahead_[j], staged(k), p_.at.h_stride);
        if (k + depth < k_steps) fetch(k + depth, ahead_[j]);
      }
    }
    if (in_cluster()) release(p_.at.h_parts - 1);
  }

  // ---- projection ----

  ELMO_DEVICE int tiles_per_block() const { return divided_up(p_.layout.p_tiles(), p_.cluster); }
  ELMO_DEVICE int cluster_unit() const { return (index_ - rank_) * p_.units_per_block; }

  // Copies the block's tiles of W_P over the cluster's cells to shared memory [tile, unit].
  ELMO_DEVICE void keep_projection() {
    const int units = present_units(cluster_unit(), p_.cluster * p_.units_per_block), first = rank_ * tiles_per_block();
    for (int tile = 0; tile < tiles_per_block() && first + tile < p_.layout.p_tiles(); ++tile) {
      const char* from = direction_weights(p_, d_) + p_.layout.projection_offset(first + tile, cluster_unit());
      char* to = shared_ + p_.at.projection + tile * p_.cluster * p_.units_per_block * tile_bytes;
      for (int at = thread_ * 16; at < units * tile_bytes; at += threads_ * 16) copy_async(to + at, from + at, true);
    }
  }

  // Computes partial sums of the block's projected values over the cluster's cells.
  ELMO_DEVICE void project(const Step& now) {
    const uint16_t* m = halves(in_cluster() ? p_.at.h : p_.at.m);
    const int stride = in_cluster() ? p_.at.gathered_stride : p_.at.m_stride;
    const int units = present_units(cluster_unit(), p_.cluster * p_.units_per_block), first = rank_ * tiles_per_block();
    for (int tile = warp_; tile < tiles_per_block() && first + tile < p_.layout.p_tiles(); tile += threads_ / 32) {
      const char* kept = shared_ + p_.at.projection + tile * p_.cluster * p_.units_per_block * tile_bytes + lane_ * 16;
      const char* streamed =
          direction_weights(p_, d_) + p_.layout.projection_offset(first + tile, cluster_unit()) + lane_ * 16;
      TileC sums[NT] = {};
#pragma unroll(R > 0 && has_clusters ? 4 : 2)
      for (int unit = 0; unit < units; ++unit) {
        const TileA a = p_.projection_resident ? load_shared_weights(kept + unit * tile_bytes)
                                               : load_weights(streamed + unit * tile_bytes);
#pragma unroll
        for (int n = 0; n < NT; ++n)
          mma(sums[n], a, right_tile(m + n * tile_slots * stride + unit * unit_cells, stride, lane_));
      }
      float* to = partials(index_ / p_.cluster) + 16 * (first + tile) + lane_ / 4;
#pragma unroll
      for (int n = 0; n < NT; ++n)
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          const int slot = slot_of(n, r % 2, lane_);
          if (slot < now.size) to[size_t(slot) * size_t(p_.layout.h_width()) + r / 2 * 8] = sums[n].r[r];
        }
    }
  }

  const Launch& p_;
  const int threads_, d_, thread_, warp_, lane_, index_, rank_;
  char* const shared_;
  const char* record_;
  Cells<NT> cells_;
  uint32_t target_ = 0, parities_ = 0;
  TileA kept_[R > 0 ? R : 1][2];
  TileA ahead_[depth][2];
};

template <int NT, int R, int depth, int most_threads>
__global__ void __launch_bounds__(most_threads, 1) persistent_kernel(const __grid_constant__ Launch p) {
  extern __shared__ __align__(16) char shared[];
  Team<NT, R, depth> team(p, shared);
  // Blocks of a cluster may write each other's shared memory once all have started and until the first exits. The grid
  // barriers order both: the first one of step 0 comes before the first such write, and the second one of the last step
  // after the last. Unlike the cluster's own barrier, these waits have a deadline.
  team.begin();
  team.run();
}

}  // namespace elmo_fast::cuda
