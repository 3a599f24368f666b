// Branches, barriers and fences, and instructions by which the threads of a warp exchange values.
#include <algorithm>

#include "lanes.h"

namespace ptx {

// A warp's clock moves on, so that what it does from here on is no part of what `to` has.
void Warp::publish(Clocks& to) {
  to.join(clocks);
  if (!clocks.of.empty()) ++clocks.of[index];
}

void Barrier::arrive(Warp& warp) {
  ++arrived;
  warp.spins = false;
  warp.publish(arriving);
}

void Barrier::wait(Warp& warp) {
  warp.state = Warp::waiting;
  waiting.push_back(&warp);
}

void Barrier::complete(uint32_t alive) {
  if (!arrived || arrived < (expected ? expected : alive)) return;
  arrived = 0;
  ++rounds;
  released = std::exchange(arriving, Clocks());
  for (Warp* warp : std::exchange(waiting, {})) {
    warp->state = Warp::ready;
    warp->clocks.join(released);
  }
}

namespace {

void branch(Warp& warp, Mask mask) {
  warp.others[warp.current->target] |= mask;
  warp.active &= ~mask;
  warp.machine->next(warp);
}

void leave(Warp& warp, Mask mask) {
  warp.alive &= ~mask;
  warp.active &= ~mask;
  if (!warp.active) warp.machine->next(warp);
  if (warp.alive) return;
  if (warp.products.open.size() + warp.products.groups.size()) throw Trap("the warp leaves with a wgmma not complete");
  warp.state = Warp::done;
  warp.spins = false;
  Block& block = *warp.block;
  --block.alive, --block.cluster->alive;
  for (Barrier& barrier : block.barriers) barrier.complete(block.alive);
  block.cluster->barrier.complete(block.cluster->alive);
  if (block.alive) return;
  // Who used this block's shared memory must have done so before it leaves.
  Warp last;
  for (const Warp& w : warp.machine->warps)
    if (w.block == &block) last.clocks.join(w.clocks);
  for (const auto& [visitor, clock] : block.visitors)
    if (!warp.machine->ordered({visitor, clock}, last))
      throw Trap("a block may leave while another uses its shared memory");
}

// bar.sync, bar.arrive: "0" or "1, 64", the second the threads that it is for.
Binder block_barrier(bool waits) {
  return [waits](Parser& s) {
    s.in.convergent = true;
    const Operand which = s.read(0), count = s.arguments.size() > 1 ? s.read(1) : s.operand("0", 4, false);
    s.in.run = [=](Warp& warp, Mask) {
      const uint32_t id = *warp.lanes<uint32_t>(which), threads = *warp.lanes<uint32_t>(count);
      if (id >= 16) throw Trap("barrier " + std::to_string(id) + " of 16");
      if (threads % warp_threads) throw Trap("a barrier for " + std::to_string(threads) + " threads");
      Barrier& barrier = warp.block->barriers[id];
      if (barrier.arrived && barrier.expected != threads / warp_threads)
        throw Trap("warps that expect different numbers at a barrier");
      barrier.expected = threads / warp_threads;
      barrier.arrive(warp);
      if (waits) barrier.wait(warp);
      barrier.complete(warp.block->alive);
    };
  };
}

void arrive_at_cluster(Warp& warp, Mask) {
  Cluster& cluster = *warp.block->cluster;
  if (warp.cluster_round >= 0) throw Trap("a second arrival at the barrier of the cluster without a wait");
  warp.cluster_round = cluster.barrier.rounds;
  cluster.barrier.arrive(warp);
  cluster.barrier.complete(cluster.alive);
}

void wait_for_cluster(Warp& warp, Mask) {
  Barrier& barrier = warp.block->cluster->barrier;
  if (warp.cluster_round < 0) throw Trap("a wait at the barrier of the cluster without an arrival");
  if (warp.cluster_round == barrier.rounds) barrier.wait(warp);
  else warp.clocks.join(barrier.released);
  warp.cluster_round = -1;
}

void fence(Warp& warp, Mask) {
  warp.clocks.join(warp.pending);
  warp.publish(warp.fenced);
}

// "d, a, b, 31, members" or "d, a, members": d = f(values of a, mask of those that take part, the thread, its b).
template <class F>
Binder exchange(F f) {
  return [f](Parser& s) {
    s.in.convergent = true;
    const bool shuffles = s.arguments.size() == 5;
    const Operand d = s.write(0), a = s.read(1), b = s.read(shuffles ? 2 : 1);
    if (shuffles && s.number(3) != 31) throw Trap("a shuffle within segments");
    s.in.members = s.read(shuffles ? 4 : 2);
    s.in.run = [=](Warp& warp, Mask mask) {
      uint32_t values[warp_threads];
      memcpy(values, warp.lanes<uint32_t>(a), sizeof values);
      for (Mask rest = mask; rest; rest &= rest - 1) {
        const uint32_t thread = uint32_t(__builtin_ctz(rest));
        warp.lanes<uint32_t>(d)[thread] = f(values, mask, thread, warp.lanes<uint32_t>(b)[thread]);
      }
    };
  };
}

uint32_t value_of(const uint32_t* values, Mask mask, uint32_t thread) {
  if (!(mask >> thread & 1)) throw Trap("a shuffle from a thread that takes no part");
  return values[thread];
}

uint32_t largest(const uint32_t* values, Mask mask, uint32_t thread, uint32_t) {
  int32_t result = int32_t(values[thread]);
  for (; mask; mask &= mask - 1) result = std::max(result, int32_t(values[__builtin_ctz(mask)]));
  return uint32_t(result);
}

}  // namespace

void add_control(Table& t) {
  t["bra"] = [](Parser& s) { s.branch_to(0), s.in.run = branch; };
  t["ret"] = action(leave, false);
  t["bar.sync"] = block_barrier(true);
  t["bar.arrive"] = block_barrier(false);
  t["barrier.cluster.arrive.release"] = action(arrive_at_cluster);
  t["barrier.cluster.wait.acquire"] = action(wait_for_cluster);
  t["nanosleep.u32"] = [](Parser& s) {
    s.read(0);
    s.in.run = [](Warp& warp, Mask) { warp.yields = warp.spins = true; };
  };
  t["fence.acq_rel.gpu"] = action(fence, false);
  t["fence.proxy.async"] = action([](Warp& warp, Mask) { warp.proxied = warp.clocks; }, false);
  t["fence.proxy.async.shared::cta"] = t["fence.proxy.async"];
  t["shfl.sync.idx.b32"] = exchange(
      [](const uint32_t* values, Mask mask, uint32_t, uint32_t from) { return value_of(values, mask, from & 31); });
  t["shfl.sync.bfly.b32"] = exchange([](const uint32_t* values, Mask mask, uint32_t thread, uint32_t by) {
    return value_of(values, mask, thread ^ (by & 31));
  });
  t["redux.sync.max.s32"] = exchange(largest);
}

}  // namespace ptx
