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
  if (!threads || threads > kernel.most_threads || !product(launch.grid))
    throw Trap(kernel.name + ": empty or too large launch");
  if (!launch.cluster || launch.grid[0] % launch.cluster)
    throw Trap(kernel.name + ": the grid is not made of full clusters");
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
  std::vector<char> memory = std::move(warp.memory);
  const uint32_t index = warp.index, threads = product(launch.block);
  warp = Warp();
  warp.machine = this;
  warp.block = &block;
  warp.index = index;
  warp.number = number;
  memory.resize(kernel.register_bytes + 4 * kernel.predicates + 64);
  warp.memory = std::move(memory);
  char* registers = warp.memory.data() + (64 - reinterpret_cast<uintptr_t>(warp.memory.data()) % 64) % 64;
  warp.banks[Operand::registers] = registers;
  warp.banks[Operand::constants] = kernel.constants.data();
  warp.predicates = reinterpret_cast<Mask*>(registers + kernel.register_bytes);
  warp.predicates[0] = 0;
  warp.predicates[1] = all_threads;
  if (kernel.has_wgmma) {
    const size_t count = kernel.register_bytes / slot_bytes;
    warp.product_state.reset(new ProductState{std::vector<uint16_t>(count), std::vector<uint16_t>(count),
                                              std::vector<uint8_t>(count, 1),
                                              std::vector<char>(kernel.register_bytes)});
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
        t % b[0], t / b[0] % b[1], t / b[0] / b[1], b[0], b[1], b[2],
        q % g[0], q / g[0] % g[1], q / g[0] / g[1], g[0], g[1], g[2],
        lane, number, block.rank, launch.cluster, block.rank, q % g[0] / launch.cluster, (1u << lane) - 1};
    for (int i = 0; i < specials; ++i)
      reinterpret_cast<uint32_t*>(registers + uint32_t(i) * slot_bytes)[lane] = values[i];
  }
}

void Machine::schedule(std::vector<Warp*>& order) {
  uint64_t idle = 0;
  for (size_t left = order.size(); left;) {
    if (launch.seed) std::shuffle(order.begin(), order.end(), random_);
    bool further = false;
    left = 0;
    for (Warp* warp : order) {
      if (warp->state == Warp::ready)
        further |= turn(*warp, launch.seed ? 1 + random_() % turn_instructions : turn_instructions);
      left += warp->state != Warp::done;
    }
    idle = further ? 0 : idle + 1;
    if (idle) skipped_ += 1000ull << std::min<uint64_t>(idle / patience, 40);
    const bool some_ready = std::any_of(order.begin(), order.end(), [](Warp* w) { return w->state == Warp::ready; });
    if (some_ready && idle < patience * speeds) continue;
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
      if (in.convergent && !converged(warp, in)) continue;
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
  if (mask && in.convergent && mask != warp.active)
    throw Trap("a barrier under a condition that differs within the warp");
  if (in.kind == Kind::cluster_wait && mask && !cluster_wait(warp, in.order == Order::acquire)) return false;
  ++warp.pc;
  if (!mask) return true;
  if (in.kind == Kind::cluster_arrive) arrive_at_cluster(warp, in.order == Order::release);
  if (in.kind == Kind::barrier || in.kind == Kind::arrive) barrier(warp, in);
  if (in.kind == Kind::pause) warp.yields = warp.spins = true;
  return warp.state == Warp::ready;
}

// All threads that take part and have not left must stand here; those that have not come yet run first.
bool Machine::converged(Warp& warp, const Instruction& in) {
  const Mask needed = warp.alive & (in.e.bank ? warp.lanes<Mask>(in.e)[__builtin_ctz(warp.active)] : all_threads);
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

std::string Machine::where(const Warp& warp) const {
  const uint32_t pc = std::min(warp.pc, uint32_t(kernel.code.size()) - 1);
  return "line " + std::to_string(kernel.code[pc].line) + " (" + kernel.texts[pc].substr(0, 120) + ") of " +
         kernel.name + ", block " + std::to_string(warp.block->index) + ", warp " + std::to_string(warp.number);
}

}  // namespace ptx
