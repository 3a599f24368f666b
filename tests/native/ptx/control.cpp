// Branches, barriers and fences, and instructions by which the threads of a warp exchange values.
#include <algorithm>

#include "lanes.h"

namespace ptx {

void Pending::commit() {
  groups.push_back(std::move(open));
  open.clear();
}

void Pending::wait(size_t left) {
  for (; groups.size() > left; groups.pop_front())
    for (const auto& complete : groups.front()) complete();
}

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

void Barrier::complete(uint32_t warps) {
  if (!arrived || arrived < warps) return;
  arrived = 0;
  ++rounds;
  released = std::move(arriving);
  arriving = Clocks();
  for (Warp* warp : waiting) {
    warp->state = Warp::ready;
    warp->clocks.join(released);
  }
  waiting.clear();
}

uint32_t Cluster::alive() const {
  uint32_t result = 0;
  for (const Block* block : blocks) result += block->alive;
  return result;
}

// A fence.proxy.async of the writer or of `warp` has made it visible.
bool Machine::visible_to_tensor_cores(const Epoch& written, const Warp& warp) const {
  const auto covers = [&](const Warp& by) {
    return written.warp < by.proxied.of.size() && by.proxied.of[written.warp] >= written.clock;
  };
  const size_t per_block = warp.block->warps.size();
  return written.clock <= base || covers(warp) || covers(blocks[written.warp / per_block].warps[written.warp % per_block]);
}

namespace {

void branch(Warp& warp, Mask mask) {
  const uint32_t target = warp.current->target;
  if (mask != warp.active) {
    warp.others[target] |= mask;
    warp.active &= ~mask;
    warp.machine->next(warp);
  } else {
    warp.pc = target;
  }
}

// Whoever reads or writes the shared memory of another block must have done so before that block leaves.
void end_of(const Block& block) {
  Warp last;
  for (const Warp& warp : block.warps) last.clocks.join(warp.clocks);
  for (const auto& [warp, clock] : block.visitors)
    if (!block.warps[0].machine->ordered({warp, clock}, last))
      throw Trap("a block may leave while another uses its shared memory");
}

void leave(Warp& warp, Mask mask) {
  warp.alive &= ~mask;
  warp.active &= ~mask;
  if (!warp.active) warp.machine->next(warp);
  if (warp.alive) return;
  if (!warp.products.open.empty() || !warp.products.groups.empty())
    throw Trap("the warp leaves with a wgmma not complete");
  warp.state = Warp::done;
  warp.spins = false;
  Block& block = *warp.block;
  --block.alive;
  for (Barrier& barrier : block.barriers)
    if (!barrier.expected) barrier.complete(block.alive);
  block.cluster->barrier.complete(block.cluster->alive());
  if (!block.alive) end_of(block);
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
      barrier.complete(barrier.expected ? barrier.expected : warp.block->alive);
    };
  };
}

void arrive_at_cluster(Warp& warp, Mask) {
  Cluster& cluster = *warp.block->cluster;
  if (warp.cluster_round >= 0) throw Trap("a second arrival at the barrier of the cluster without a wait");
  warp.cluster_round = cluster.barrier.rounds;
  cluster.barrier.arrive(warp);
  cluster.barrier.complete(cluster.alive());
}

void wait_for_cluster(Warp& warp, Mask) {
  Barrier& barrier = warp.block->cluster->barrier;
  if (warp.cluster_round < 0) throw Trap("a wait at the barrier of the cluster without an arrival");
  if (warp.cluster_round == barrier.rounds)
    barrier.wait(warp);
  else
    warp.clocks.join(barrier.released);
  warp.cluster_round = -1;
}

void fence(Warp& warp, Mask) {
  warp.clocks.join(warp.pending);
  warp.publish(warp.fenced);
}

// shfl.sync: d is a of the thread that source(thread, b) names.
template <class F>
Binder shuffle(F source) {
  return [source](Parser& s) {
    s.in.convergent = true;
    const Operand d = s.write(0), a = s.read(1), b = s.read(2);
    if (s.number(3) != 31) throw Trap("a shuffle within segments");
    s.in.members = s.read(4);
    s.in.run = [=](Warp& warp, Mask mask) {
      std::array<uint32_t, warp_threads> values;
      std::copy_n(warp.lanes<uint32_t>(a), warp_threads, values.begin());
      for_threads(mask, [&](int lane) {
        const uint32_t from = source(uint32_t(lane), warp.lanes<uint32_t>(b)[lane]) & 31;
        if (!(mask >> from & 1)) throw Trap("a shuffle from a thread that takes no part");
        warp.lanes<uint32_t>(d)[lane] = values[from];
      });
    };
  };
}

template <class T, class F>
Binder reduction(F f) {
  return [f](Parser& s) {
    s.in.convergent = true;
    const Operand d = s.write(0), a = s.read(1);
    s.in.members = s.read(2);
    s.in.run = [=](Warp& warp, Mask mask) {
      const T* from = warp.lanes<T>(a);
      T result = from[__builtin_ctz(mask)];
      for_threads(mask & (mask - 1), [&](int lane) { result = f(result, from[lane]); });
      for_threads(mask, [&](int lane) { warp.lanes<T>(d)[lane] = result; });
    };
  };
}

}  // namespace

void add_control(Table& t) {
  t["bra"] = [](Parser& s) { s.branch_to(0), s.in.run = branch; };
  t["ret"] = action(leave, false);
  t["bar.sync"] = block_barrier(true);
  t["bar.arrive"] = block_barrier(false);
  t["barrier.cluster.arrive.release"] = action(arrive_at_cluster);
  t["barrier.cluster.wait.acquire"] = action(wait_for_cluster);
  t["fence.acq_rel.gpu"] = action(fence, false);
  t["fence.proxy.async"] = action([](Warp& warp, Mask) { warp.proxied = warp.clocks; }, false);
  t["fence.proxy.async.shared::cta"] = t["fence.proxy.async"];
  t["shfl.sync.idx.b32"] = shuffle([](uint32_t, uint32_t by) { return by; });
  t["shfl.sync.bfly.b32"] = shuffle([](uint32_t lane, uint32_t by) { return lane ^ by; });
  t["redux.sync.max.s32"] = reduction<int32_t>([](int32_t a, int32_t b) { return std::max(a, b); });
  t["redux.sync.max.u32"] = reduction<uint32_t>([](uint32_t a, uint32_t b) { return std::max(a, b); });
  t["redux.sync.add.u32"] = reduction<uint32_t>([](uint32_t a, uint32_t b) { return a + b; });
}

}  // namespace ptx
