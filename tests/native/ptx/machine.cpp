#include "machine.h"

#include <algorithm>

namespace ptx {
namespace {

constexpr uint64_t turn_instructions = 2000;
constexpr uint64_t patience = 64;  // rounds in which nobody came further before time runs twice as fast
constexpr uint64_t speeds = 44;    // how often it may do so before all is taken for lost

Clock newest;  // no clock of an earlier wave or launch is above it

uint32_t product(const uint32_t of[3]) { return of[0] * of[1] * of[2]; }

}  // namespace

Machine::Machine(Kernel& k, const Launch& l, GlobalMemory& g, const Settings& s)
    : kernel(k), launch(l), settings(s), global(g), random(l.seed) {
  const uint32_t threads = product(launch.block);
  if (!threads || threads > kernel.most_threads || !product(launch.grid))
    throw Trap(kernel.name + ": empty or too large launch");
  if (!launch.cluster || launch.grid[0] % launch.cluster)
    throw Trap(kernel.name + ": the grid is not made of full clusters");
}

void Machine::run(const char* given) {
  parameters = given;
  const uint32_t count = product(launch.grid), wave = launch.together ? count : launch.cluster;
  std::vector<uint32_t> first;
  for (uint32_t i = 0; i < count; i += wave) first.push_back(i);
  if (launch.seed) std::shuffle(first.begin(), first.end(), random);
  for (uint32_t i : first) run_wave(i, wave);
}

void Machine::run_wave(uint32_t first, uint32_t count) {
  const uint32_t warps_of_block = (product(launch.block) + warp_threads - 1) / warp_threads;
  warps = count * warps_of_block;
  base = newest;
  released.clear();
  registers.resize(size_t(warps) * kernel.register_bytes + 64);
  clusters = std::vector<Cluster>(count / launch.cluster);
  blocks = std::vector<Block>(count);
  std::vector<Warp*> order;
  for (uint32_t i = 0; i < count; ++i) {
    Block& block = blocks[i];
    block.cluster = &clusters[i / launch.cluster];
    block.cluster->blocks.push_back(&block);
    block.rank = i % launch.cluster;
    block.index = first + i;
    block.alive = warps_of_block;
    block.shared.assign(kernel.static_shared + launch.shared, char(0xff));  // NaN
    if (settings.checks) block.shadow = Shadow(block.shared.size(), false);
    block.warps = std::vector<Warp>(warps_of_block);
    for (Warp& warp : block.warps) {
      warp.index = uint32_t(order.size());
      start(warp, block);
      order.push_back(&warp);
    }
  }
  schedule(order);
  for (const Warp* warp : order) newest = std::max(newest, warp->clock());
}

void Machine::start(Warp& warp, Block& block) {
  warp.machine = this;
  warp.block = &block;
  warp.number = uint32_t(&warp - block.warps.data());
  const uintptr_t aligned = (reinterpret_cast<uintptr_t>(registers.data()) + 63) / 64 * 64;
  warp.banks[Operand::registers] = reinterpret_cast<char*>(aligned) + size_t(warp.index) * kernel.register_bytes;
  warp.banks[Operand::constants] = kernel.constants.data();
  if (const size_t count = kernel.has_wgmma ? kernel.register_bytes / slot_bytes : 0)
    warp.product_registers = {std::vector<uint16_t>(count), std::vector<uint16_t>(count),
                              std::vector<uint8_t>(count, 1), std::vector<char>(kernel.register_bytes)};
  if (settings.checks) warp.clocks.of.assign(warps, base);
  if (settings.checks) ++warp.clocks.of[warp.index];
  const uint32_t begin = warp.number * warp_threads, *b = launch.block, *g = launch.grid, q = block.index;
  warp.active = warp.alive = all_threads >> (warp_threads - std::min<uint32_t>(warp_threads, product(b) - begin));
  for (uint32_t t = begin; t < begin + warp_threads; ++t) {
    const uint32_t values[specials] = {t % b[0], t / b[0] % b[1], t / b[0] / b[1], b[0], b[1], b[2],
        q % g[0], q / g[0] % g[1], q / g[0] / g[1], g[0], g[1], g[2], block.rank};
    for (uint32_t i = 0; i < specials; ++i)
      warp.lanes<uint32_t>({Operand::registers, 4, place_of_special(i)})[t - begin] = values[i];
  }
}

void Machine::schedule(std::vector<Warp*>& order) {
  uint64_t idle = 0;
  for (size_t left = order.size(); left;) {
    if (launch.seed) std::shuffle(order.begin(), order.end(), random);
    bool further = false;
    for (Warp* warp : order)
      if (warp->state == Warp::ready)
        further |= turn(*warp, launch.seed ? 1 + random() % turn_instructions : turn_instructions);
    left = size_t(std::count_if(order.begin(), order.end(), [](Warp* w) { return w->state != Warp::done; }));
    idle = further ? 0 : idle + 1;
    if (idle) nanoseconds += 1000ull << std::min<uint64_t>(idle / patience, 40);
    const bool some_ready = std::any_of(order.begin(), order.end(), [](Warp* w) { return w->state == Warp::ready; });
    if (!left || (some_ready && idle < patience * speeds)) continue;
    std::string who;
    int named = 0;
    for (const Warp* warp : order)
      if (warp->state != Warp::done && named++ < 4) who += "; " + where(*warp);
    throw Trap("deadlock: " + std::to_string(left) + " warps wait" + who);
  }
}

bool Machine::turn(Warp& warp, uint64_t instructions) try {
  std::fill_n(warp.lanes<uint64_t>(timer), warp_threads, nanoseconds);
  for (warp.yields = false; instructions && warp.state == Warp::ready && !warp.yields; --instructions) {
    warp.current = &kernel.code[warp.pc];
    if (warp.pc >= warp.meets || (warp.current->convergent && warp.active != warp.alive)) next(warp);
    Instruction& in = *(warp.current = &kernel.code[warp.pc]);
    const Mask mask = warp.active & (*warp.lanes<Mask>(in.guard) ^ in.skips);
    ++warp.pc;
    ++nanoseconds;
    ++in.counts.executed;
    in.counts.threads += unsigned(__builtin_popcount(mask));
    if (kernel.has_wgmma) check_registers(warp, in);
    if (!mask) continue;
    if (in.convergent && mask != warp.active) throw Trap("a barrier under a condition that differs within the warp");
    in.run(warp, mask);
  }
  return warp.state != Warp::ready || !warp.spins;
} catch (const Trap& trap) {
  throw Trap(std::string(trap.what()) + " at " + where(warp));
}

// Those that are furthest behind run. At a convergent instruction threads wait until all are there that have not left.
void Machine::next(Warp& warp) {
  if (warp.active) warp.others[warp.pc] |= warp.active;
  for (auto split = warp.others.begin(); split != warp.others.end(); ++split) {
    const auto [pc, threads] = *split;
    const Instruction& in = kernel.code[pc];
    const Mask needed = in.convergent ? warp.alive & warp.lanes<Mask>(in.members)[__builtin_ctz(threads)] : 0;
    if (needed & ~threads) continue;
    warp.pc = pc;
    warp.active = threads;
    const auto after = warp.others.erase(split);
    warp.meets = after == warp.others.end() ? ~0u : after->first;
    return;
  }
  if (warp.alive) throw Trap("an instruction for the full warp with threads missing");
}

std::string Machine::where(const Warp& warp) const {
  return "line " + std::to_string(warp.current->line) + " (" + warp.current->text.substr(0, 120) + ") of " +
         kernel.name + ", block " + std::to_string(warp.block->index) + ", warp " + std::to_string(warp.number);
}

}  // namespace ptx
