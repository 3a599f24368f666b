#include "machine.h"

#include <algorithm>

namespace ptx {
namespace {

constexpr uint64_t turn_instructions = 2000;
constexpr uint64_t patience = 64;  // rounds in which nobody came further before time runs twice as fast
constexpr uint64_t speeds = 44;    // how often it may do so before all is taken for lost

Clock newest;                 // no clock of an earlier wave or launch is above it
std::vector<char> registers;  // of the warps that run together

uint32_t product(const std::array<uint32_t, 3>& of) { return of[0] * of[1] * of[2]; }

}  // namespace

Machine::Machine(Kernel& k, const Launch& l, GlobalMemory& g, const Settings& s)
    : kernel(k), launch(l), settings(s), global(g), random(l.seed) {
  const uint32_t threads = product(launch.block);
  const bool fits = threads && threads <= kernel.most_threads && product(launch.grid);
  if (!fits || launch.grid[0] % launch.cluster) throw Trap(kernel.name + ": an empty, too large or uneven launch");
  const uint32_t together = launch.together ? product(launch.grid) : launch.cluster;
  blocks = std::vector<Block>(together);
  clusters = std::vector<Cluster>(together / launch.cluster);
  warps = std::vector<Warp>(together * ((threads + warp_threads - 1) / warp_threads));
  registers.resize(warps.size() * kernel.register_bytes + 64);
}

void Machine::run(const char* given) {
  parameters = given;
  std::vector<uint32_t> first;
  for (uint32_t i = 0; i < product(launch.grid); i += uint32_t(blocks.size())) first.push_back(i);
  if (launch.seed) std::shuffle(first.begin(), first.end(), random);
  for (uint32_t i : first) {
    start(i);
    schedule();
    for (const Warp& warp : warps) newest = std::max(newest, warp.clock());
  }
}

void Machine::start(uint32_t first_block) {
  const uint32_t per_block = uint32_t(warps.size() / blocks.size());
  base = newest;
  released.clear();
  std::fill(clusters.begin(), clusters.end(), Cluster());
  for (uint32_t i = 0; i < blocks.size(); ++i) {
    Cluster& cluster = clusters[i / launch.cluster];
    cluster.blocks.push_back(&blocks[i]);
    cluster.alive += per_block;
    blocks[i] = {&cluster, first_block + i, i % launch.cluster, i * per_block, per_block, {}, {}, {}, {}};
    blocks[i].shared.assign(kernel.static_shared + launch.shared, char(0xff));  // NaN
    if (settings.checks) blocks[i].shadow = Shadow(blocks[i].shared.size(), false);
  }
  for (Warp& warp : warps) start(warp);
}

void Machine::start(Warp& warp) {
  warp = Warp();
  warp.machine = this;
  warp.index = uint32_t(&warp - warps.data());
  Block& block = *(warp.block = &blocks[warp.index * blocks.size() / warps.size()]);
  warp.number = warp.index - block.first;
  const uintptr_t aligned = (reinterpret_cast<uintptr_t>(registers.data()) + 63) / 64 * 64;
  warp.banks[Operand::registers] = reinterpret_cast<char*>(aligned) + size_t(warp.index) * kernel.register_bytes;
  warp.banks[Operand::constants] = kernel.constants.data();
  if (const size_t count = kernel.has_wgmma ? kernel.register_bytes / slot_bytes : 0)
    warp.product_registers = {std::vector<uint16_t>(count), std::vector<uint16_t>(count),
                              std::vector<uint8_t>(count, 1), std::vector<char>(kernel.register_bytes)};
  if (settings.checks) warp.clocks.of.assign(warps.size(), base);
  if (settings.checks) ++warp.clocks.of[warp.index];
  const uint32_t begin = warp.number * warp_threads, left = product(launch.block) - begin;
  const uint32_t width = launch.block[0], *g = launch.grid.data(), q = block.index;
  warp.active = warp.alive = all_threads >> (warp_threads - std::min<uint32_t>(warp_threads, left));
  for (uint32_t t = begin; t < begin + warp_threads; ++t) {
    const uint32_t values[specials] = {t % width, width, q % g[0], q / g[0] % g[1], q / g[0] / g[1], block.rank};
    for (uint32_t i = 0; i < specials; ++i) warp.lanes<uint32_t>(special(i))[t - begin] = values[i];
  }
}

void Machine::schedule() {
  std::vector<Warp*> left;
  for (Warp& warp : warps) left.push_back(&warp);
  for (uint64_t idle = 0; !left.empty();) {
    if (launch.seed) std::shuffle(left.begin(), left.end(), random);
    bool further = false, some_ready = false;
    for (Warp* warp : left)
      if (warp->state == Warp::ready)
        further |= turn(*warp, launch.seed ? 1 + random() % turn_instructions : turn_instructions);
    left.erase(std::remove_if(left.begin(), left.end(), [](Warp* w) { return w->state == Warp::done; }), left.end());
    for (const Warp* warp : left) some_ready |= warp->state == Warp::ready;
    idle = further ? 0 : idle + 1;
    if (idle) nanoseconds += 1000ull << std::min<uint64_t>(idle / patience, 40);
    if (left.empty() || (some_ready && idle < patience * speeds)) continue;
    std::string who = "deadlock: " + std::to_string(left.size()) + " warps wait";
    for (size_t i = 0; i < std::min<size_t>(left.size(), 4); ++i) who += "; " + where(*left[i]);
    throw Trap(who);
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
