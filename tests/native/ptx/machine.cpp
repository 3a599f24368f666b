#include "machine.h"

#include <algorithm>
#include <cstring>

namespace ptx {
namespace {

constexpr uint64_t turn_instructions = 2000;
constexpr uint64_t patience = 64;  // rounds in which nobody came further before time runs twice as fast
constexpr uint64_t speeds = 44;    // how often it may do so before all is taken for lost

uint32_t product(const uint32_t of[3]) { return of[0] * of[1] * of[2]; }

}  // namespace

Clock Machine::newest_ = 0;

Machine::Machine(Kernel& k, const Launch& l, GlobalMemory& global, const Settings& s)
    : kernel(k), launch(l), settings(s), global_(global), random_(l.seed) {
  const uint32_t threads = product(launch.block);
  if (!threads || threads > kernel.most_threads || !product(launch.grid)) throw Trap(kernel.name + ": empty or too large launch");
  if (!launch.cluster || launch.grid[0] % launch.cluster) throw Trap(kernel.name + ": the grid is not made of full clusters");
}

void Machine::run(const char* given) {
  parameters = given;
  const uint32_t blocks = product(launch.grid), wave = launch.together ? blocks : launch.cluster;
  std::vector<uint32_t> first;
  for (uint32_t i = 0; i < blocks; i += wave) first.push_back(i);
  if (launch.seed) std::shuffle(first.begin(), first.end(), random_);
  for (uint32_t i : first) run_wave(i, wave);
}

void Machine::run_wave(uint32_t first, uint32_t blocks) {
  const uint32_t warps = (product(launch.block) + warp_threads - 1) / warp_threads;
  wave_warps_ = blocks * warps;
  base_ = newest_;
  released_.clear();
  blocks_.resize(blocks);
  clusters_.assign(blocks / launch.cluster, Cluster());
  std::vector<Warp*> order;
  for (uint32_t i = 0; i < blocks; ++i) {
    Block& block = blocks_[i];
    block.cluster = &clusters_[i / launch.cluster];
    block.cluster->blocks.push_back(&block);
    block.rank = i % launch.cluster;
    block.warps.resize(warps);
    prepare(block, first + i);
    for (uint32_t w = 0; w < warps; ++w) {
      block.warps[w].index = i * warps + w;
      prepare(block.warps[w], block, w);
      order.push_back(&block.warps[w]);
    }
  }
  schedule(order);
  for (const Warp* warp : order) newest_ = std::max(newest_, warp->clock());
}

void Machine::prepare(Block& block, uint32_t index) {
  block.index = index;
  block.alive = uint32_t(block.warps.size());
  const size_t bytes = kernel.static_shared + launch.shared;
  block.shared.assign(bytes, char(0xff));
  if (settings.checks) block.shadow = Shadow(bytes, false);
  for (Barrier& barrier : block.barriers) barrier = Barrier();
  block.visitors.clear();
}

void Machine::prepare(Warp& warp, Block& block, uint32_t number) {
  std::vector<char> memory = std::move(warp.memory), local = std::move(warp.local);
  const uint32_t index = warp.index, threads = product(launch.block);
  warp = Warp();
  warp.machine = this;
  warp.block = &block;
  warp.index = index;
  warp.number = number;
  memory.resize(kernel.register_bytes + 4 * kernel.predicates + 64);
  local.resize(size_t(kernel.local_bytes) * warp_threads);
  warp.memory = std::move(memory);
  warp.local = std::move(local);
  char* registers = warp.memory.data() + (64 - reinterpret_cast<uintptr_t>(warp.memory.data()) % 64) % 64;
  warp.banks[Operand::registers] = registers;
  warp.banks[Operand::constants] = kernel.constants.data();
  warp.predicates = reinterpret_cast<Mask*>(registers + kernel.register_bytes);
  warp.predicates[0] = 0;
  warp.predicates[1] = all_threads;
  if (kernel.has_wgmma) {
    const size_t count = kernel.register_bytes / slot_bytes;
    warp.product_state.reset(new ProductState{std::vector<uint16_t>(count), std::vector<uint16_t>(count),
                                              std::vector<uint8_t>(count, 1), std::vector<char>(kernel.register_bytes)});
  }
  if (settings.checks) {
    warp.clocks.of.assign(wave_warps_, base_);
    ++warp.clocks.of[index];
  }
  const uint32_t here = std::min<uint32_t>(warp_threads, threads - number * warp_threads);
  warp.active = warp.alive = here == warp_threads ? all_threads : (1u << here) - 1;
  const uint32_t *b = launch.block, *g = launch.grid, q = block.index;
  for (uint32_t lane = 0; lane < uint32_t(warp_threads); ++lane) {
    const uint32_t t = number * warp_threads + lane;
    const uint32_t values[specials] = {
        t % b[0], t / b[0] % b[1], t / b[0] / b[1], b[0], b[1], b[2], q % g[0], q / g[0] % g[1], q / g[0] / g[1], g[0], g[1],
        g[2], lane, number, block.rank, launch.cluster, block.rank, q % g[0] / launch.cluster, (1u << lane) - 1};
    for (int i = 0; i < specials; ++i) reinterpret_cast<uint32_t*>(registers + uint32_t(i) * slot_bytes)[lane] = values[i];
  }
}

void Machine::schedule(std::vector<Warp*>& order) {
  uint64_t idle = 0;
  for (size_t left = order.size(); left;) {
    if (launch.seed) std::shuffle(order.begin(), order.end(), random_);
    bool further = false;
    left = 0;
    for (Warp* warp : order) {
      if (warp->state == Warp::ready) further |= turn(*warp, launch.seed ? 1 + random_() % turn_instructions : turn_instructions);
      left += warp->state != Warp::done;
    }
    idle = further ? 0 : idle + 1;
    if (idle) skipped_ += 1000ull << std::min<uint64_t>(idle / patience, 40);
    if (idle < patience * speeds && (further || std::any_of(order.begin(), order.end(), [](Warp* w) { return w->state == Warp::ready; }))) continue;
    if (!left) break;
    std::string who;
    int named = 0;
    for (const Warp* warp : order)
      if (warp->state != Warp::done && named++ < 4) who += "; " + where(*warp);
    throw Trap("deadlock: " + std::to_string(left) + " warps wait" + who);
  }
}

bool Machine::turn(Warp& warp, uint64_t instructions) {
  const Instruction* code = kernel.code.data();
  warp.yields = false;
  try {
    for (; instructions && !warp.yields; --instructions) {
      if (warp.pc >= warp.meets) {
        const Split here = {warp.pc, warp.active};
        warp.active = 0;
        add(warp, here);
        next(warp);
      }
      const Instruction& in = code[warp.pc];
      if (in.convergent && !converged(warp, in.e.bank ? warp.lanes<Mask>(in.e)[__builtin_ctz(warp.active)] : all_threads)) continue;
      Mask mask = warp.active;
      if (in.guarded) mask &= in.guard_negated ? ~warp.predicates[in.guard] : warp.predicates[in.guard];
      ++executed_;
      Counts& counts = kernel.counts[warp.pc];
      ++counts.executed;
      counts.threads += unsigned(__builtin_popcount(mask));
      if (in.kind == Kind::plain) {
        if (warp.product_state) warp.check_registers(in);
        if (mask) in.run(warp, in, mask);
        ++warp.pc;
      } else if (!special(warp, in, mask)) {
        return true;
      }
    }
  } catch (const Trap& trap) {
    throw Trap(std::string(trap.what()) + " at " + where(warp));
  }
  return !warp.spins;
}

bool Machine::special(Warp& warp, const Instruction& in, Mask mask) {
  if (in.kind == Kind::branch) {
    branch(warp, in, mask);
    return true;
  }
  if (in.kind == Kind::leave) {
    leave(warp, mask);
    return warp.state != Warp::done;
  }
  if (mask && in.convergent && mask != warp.active) throw Trap("a barrier under a condition that differs within the warp");
  if (in.kind == Kind::cluster_wait && mask && !cluster_wait(warp, in.order == Order::acquire)) return false;
  ++warp.pc;
  if (!mask) return true;
  if (in.kind == Kind::cluster_arrive) arrive_at_cluster(warp, in.order == Order::release);
  if (in.kind == Kind::barrier || in.kind == Kind::arrive) barrier(warp, in);
  if (in.kind == Kind::pause) warp.yields = warp.spins = true;
  return warp.state == Warp::ready;
}

// All of `needed` that have not left must stand here; those that have not come yet run first.
bool Machine::converged(Warp& warp, Mask needed) {
  needed &= warp.alive;
  if ((warp.active & needed) == needed) return true;
  for (size_t i = warp.parked.size(); i-- > 0;) {
    if (warp.parked[i].pc != warp.pc) continue;
    warp.active |= warp.parked[i].threads;
    warp.parked.erase(warp.parked.begin() + long(i));
  }
  if ((warp.active & needed) == needed) return true;
  if (warp.others.empty()) throw Trap("an instruction for the full warp with threads missing");
  warp.parked.push_back({warp.pc, warp.active});
  next(warp);
  return false;
}

void Machine::add(Warp& warp, Split split) {
  if (!split.threads) return;
  size_t at = warp.others.size();
  while (at > 0 && warp.others[at - 1].pc < split.pc) --at;
  if (at > 0 && warp.others[at - 1].pc == split.pc)
    warp.others[at - 1].threads |= split.threads;
  else
    warp.others.insert(warp.others.begin() + long(at), split);
}

void Machine::next(Warp& warp) {
  warp.active = 0;
  if (!warp.others.empty()) {
    warp.pc = warp.others.back().pc;
    warp.active = warp.others.back().threads;
    warp.others.pop_back();
  } else if (!warp.parked.empty()) {
    warp.pc = warp.parked.back().pc;
    warp.active = warp.parked.back().threads;
    warp.parked.pop_back();
  }
  warp.meets = warp.others.empty() ? ~0u : warp.others.back().pc;
}

void Machine::branch(Warp& warp, const Instruction& in, Mask mask) {
  if (mask == warp.active) {
    warp.pc = in.target;
  } else if (!mask) {
    ++warp.pc;
  } else {
    add(warp, {in.target, mask});
    add(warp, {warp.pc + 1, warp.active & ~mask});
    next(warp);
  }
}

void Machine::leave(Warp& warp, Mask mask) {
  warp.alive &= ~mask;
  warp.active &= ~mask;
  if (warp.active)
    ++warp.pc;
  else
    next(warp);
  if (warp.alive) return;
  if (!warp.products.empty() || !warp.product_groups.empty()) throw Trap("the warp leaves with a wgmma not complete");
  warp.state = Warp::done;
  warp.spins = false;
  Block& block = *warp.block;
  --block.alive;
  for (Barrier& barrier : block.barriers)
    if (!barrier.expected) complete(block, barrier);
  complete(*block.cluster);
  if (!block.alive) end_of(block);
}

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
  if (barrier.arrived && barrier.expected != threads / warp_threads) throw Trap("warps that expect different numbers at a barrier");
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
  if (at % uint32_t(bytes)) throw Trap("misaligned shared address " + std::to_string(at) + " for " + std::to_string(bytes) + " bytes");
  if (at + uint32_t(bytes) > block->shared.size())
    throw Trap("shared address " + std::to_string(at) + " out of bounds of " + std::to_string(block->shared.size()));
  if (block != warp.block) {
    if (!block->alive) throw Trap("the shared memory of a block that has left");
    if (settings.checks) {
      if (!block->cluster->generation && warp.clocks.of[block->warps[0].index] <= base_)
        throw Trap("the shared memory of a block that may not have started");
      auto& visits = block->visitors;
      const auto mine = std::find_if(visits.begin(), visits.end(), [&](const Epoch& e) { return e.warp == warp.index; });
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

std::string Machine::where(const Warp& warp) const {
  const uint32_t pc = std::min(warp.pc, uint32_t(kernel.code.size()) - 1);
  return "line " + std::to_string(kernel.code[pc].line) + " (" + kernel.texts[pc].substr(0, 120) + ") of " + kernel.name +
         ", block " + std::to_string(warp.block->index) + ", warp " + std::to_string(warp.number);
}

}  // namespace ptx
