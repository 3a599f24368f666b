// What puts accesses in order: barriers of blocks and clusters, releases and acquires; and who may access what.
#include <algorithm>

#include "machine.h"

namespace ptx {

// Whoever reads or writes the shared memory of another block must have done so before that block leaves.
void Machine::end_of(Block& block) {
  if (!settings.checks || block.visitors.empty()) return;
  Warp last;
  for (const Warp& warp : block.warps) last.clocks.join(warp.clocks);
  for (const Epoch& visit : block.visitors)
    if (!ordered(visit, last)) throw Trap("a block may leave while another uses its shared memory");
}

void Machine::publish(Warp& warp, Clocks& to) {
  if (!settings.checks) return;
  to.join(warp.clocks);
  ++warp.clocks.of[warp.index];
}

void Machine::barrier(Warp& warp, const Instruction& in) {
  Block& block = *warp.block;
  const uint32_t id = *warp.lanes<uint32_t>(in.a), threads = in.b.bank ? *warp.lanes<uint32_t>(in.b) : 0;
  if (id >= 16) throw Trap("barrier " + std::to_string(id) + " of 16");
  if (threads % warp_threads) throw Trap("a barrier for " + std::to_string(threads) + " threads");
  Barrier& barrier = block.barriers[id];
  if (barrier.arrived && barrier.expected != threads / warp_threads)
    throw Trap("warps that expect different numbers at a barrier");
  barrier.expected = threads / warp_threads;
  ++barrier.arrived;
  warp.spins = false;
  publish(warp, barrier.clocks);
  if (in.kind == Kind::barrier) {
    warp.state = Warp::waiting;
    barrier.waiting.push_back(&warp);
  }
  complete(block, barrier);
}

void Machine::complete(Block& block, Barrier& barrier) {
  const uint32_t needed = barrier.expected ? barrier.expected : block.alive;
  if (!barrier.arrived || barrier.arrived < needed) return;
  for (Warp* warp : barrier.waiting) {
    warp->state = Warp::ready;
    warp->clocks.join(barrier.clocks);
  }
  barrier = Barrier();
}

void Machine::arrive_at_cluster(Warp& warp, bool releases) {
  Cluster& cluster = *warp.block->cluster;
  if (warp.arrived_at_cluster) throw Trap("a second arrival at the barrier of the cluster without a wait");
  warp.arrived_at_cluster = true;
  warp.spins = false;
  warp.cluster_generation = cluster.generation;
  ++cluster.arrived;
  if (releases) publish(warp, cluster.clocks);
  complete(cluster);
}

void Machine::complete(Cluster& cluster) {
  uint32_t alive = 0;
  for (const Block* block : cluster.blocks) alive += block->alive;
  if (!cluster.arrived || cluster.arrived < alive) return;
  cluster.arrived = 0;
  ++cluster.generation;
  cluster.released = std::move(cluster.clocks);
  cluster.clocks = Clocks();
  for (Block* block : cluster.blocks)
    for (Warp& warp : block->warps)
      if (warp.at_cluster_wait && warp.state == Warp::waiting) warp.state = Warp::ready;
}

bool Machine::cluster_wait(Warp& warp, bool acquires) {
  if (!warp.arrived_at_cluster) throw Trap("a wait at the barrier of the cluster without an arrival");
  const Cluster& cluster = *warp.block->cluster;
  warp.at_cluster_wait = cluster.generation == warp.cluster_generation;
  warp.state = warp.at_cluster_wait ? Warp::waiting : Warp::ready;
  if (warp.at_cluster_wait) return false;
  warp.arrived_at_cluster = false;
  if (acquires) warp.clocks.join(cluster.released);
  return true;
}

void Machine::acquire(Warp& warp, uintptr_t address, Order order) {
  const auto found = released_.find(address);
  if (!settings.checks || found == released_.end()) return;
  if (order == Order::acquire || order == Order::acquire_release)
    warp.clocks.join(found->second);
  else
    warp.pending.join(found->second);
}

void Machine::release(Warp& warp, uintptr_t address, Order order) {
  warp.spins = false;
  if (!settings.checks) return;
  if (order == Order::release || order == Order::acquire_release)
    publish(warp, released_[address]);
  else if (!warp.fenced.of.empty())
    released_[address].join(warp.fenced);
}

void Machine::fence(Warp& warp) {
  if (!settings.checks) return;
  warp.clocks.join(warp.pending);
  warp.fenced = warp.clocks;
  ++warp.clocks.of[warp.index];
}

bool Machine::visible_to_proxy(const Epoch& written, const Warp& warp) const {
  const auto covers = [&](const Warp& by) {
    return written.warp < by.proxied.of.size() && by.proxied.of[written.warp] >= written.clock;
  };
  if (written.clock <= base_ || covers(warp)) return true;
  const Warp& writer = blocks_[written.warp / warp.block->warps.size()].warps[written.warp % warp.block->warps.size()];
  return covers(writer);
}

void Machine::poll(Warp& warp, uint64_t value) {
  const auto [found, fresh] = warp.polled.insert({warp.pc, value});
  if (!fresh) warp.spins = found->second == value;
  warp.yields |= warp.spins;
  found->second = value;
}

char* Machine::shared(Warp& warp, const Instruction& in, uint32_t address, int bytes, Block** of) {
  const uint32_t rank = address >> 24, at = address & 0xffffff;
  Block* block = warp.block;
  if (rank) {
    if (in.space == Space::shared) throw Trap("an address of the cluster in an instruction for the own block");
    block = block->cluster->blocks.at(rank - 1);
  }
  if (at % uint32_t(bytes))
    throw Trap("misaligned shared address " + std::to_string(at) + " for " + std::to_string(bytes) + " bytes");
  if (at + uint32_t(bytes) > block->shared.size())
    throw Trap("shared address " + std::to_string(at) + " out of bounds of " + std::to_string(block->shared.size()));
  if (block != warp.block) {
    if (!block->alive) throw Trap("the shared memory of a block that has left");
    if (settings.checks) {
      if (!block->cluster->generation && warp.clocks.of[block->warps[0].index] <= base_)
        throw Trap("the shared memory of a block that may not have started");
      auto& visits = block->visitors;
      const auto mine = std::find_if(visits.begin(), visits.end(),
          [&](const Epoch& e) { return e.warp == warp.index; });
      if (mine == visits.end())
        visits.push_back({warp.index, warp.clock()});
      else
        mine->clock = warp.clock();
    }
  }
  *of = block;
  return block->shared.data() + at;
}

char* Machine::global_memory(uint64_t address, int bytes, Region** region) {
  if (address % uint64_t(bytes)) throw Trap("misaligned global address for " + std::to_string(bytes) + " bytes");
  *region = nullptr;
  if (global_.checked() && !(*region = global_.find(address, size_t(bytes)))) {
    char text[64];
    snprintf(text, sizeof text, "global address 0x%llx out of bounds", static_cast<unsigned long long>(address));
    throw Trap(text);
  }
  return reinterpret_cast<char*>(address);
}

}  // namespace ptx
