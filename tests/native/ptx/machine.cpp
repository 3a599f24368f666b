// Which warp and which of its threads run next, and the instructions that decide it: branches, barriers, exchanges.
#include "machine.h"

namespace ptx {
namespace {

constexpr uint64_t turn_instructions = 2000;
constexpr uint64_t patience = 64;  // rounds in which nobody affects others before time runs twice as fast
constexpr uint64_t speeds = 44;    // how often it may do so before all is taken for lost

struct alignas(64) Slot {
  char bytes[slot_bytes];
};

Clock newest;                 // no clock of an earlier wave or launch is above it
std::vector<Slot> registers;  // of the warps that run together

void check_registers(Warp& warp, const Instruction& in) {
  for (const auto* registers : {&in.reads, &in.writes})
    for (uint32_t at : *registers)
      if (warp.accumulating[at / slot_bytes]) throw Trap("an accumulator of a wgmma that is not complete");
  for (uint32_t at : in.writes) warp.unfenced[at / slot_bytes] = 1;
}

void note_uses(Warp& warp, const Instruction& in) {
  for (const auto* registers : {&in.reads, &in.writes})
    for (uint32_t at : *registers) warp.unused_count -= std::exchange(warp.unused[at / slot_bytes], 0);
}

Mask guarded(const Warp& warp, const Instruction& in) {
  if (in.guard.bank == Operand::none) return all_threads;
  Mask holds = 0;
  for (int i = 0; i < warp_threads; ++i) holds |= Mask(warp.lanes<uint32_t>(in.guard)[i] != 0) << i;
  return holds ^ in.skips;
}

}  // namespace

uint32_t product(const std::array<uint32_t, 3>& of) { return of[0] * of[1] * of[2]; }

void run(Kernel& kernel, const Launch& launch, GlobalMemory& global) {
  const uint32_t threads = product(launch.block), blocks = product(launch.grid);
  if (!threads || threads > kernel.most_threads || !blocks || launch.grid[0] % launch.cluster)
    throw Trap(kernel.name + ": an empty, too large or uneven launch");
  std::vector<uint32_t> first;
  for (uint32_t i = 0; i < blocks; i += launch.together ? blocks : launch.cluster) first.push_back(i);
  if (launch.seed) std::shuffle(first.begin(), first.end(), std::mt19937(launch.seed));
  for (uint32_t i : first) Machine(kernel, launch, global, i).run();
}

Machine::Machine(Kernel& k, const Launch& l, GlobalMemory& g, uint32_t first_block)
    : kernel(k), launch(l), global(g), base(newest), random(l.seed + first_block) {
  const uint32_t threads = product(launch.block), per_block = (threads + warp_threads - 1) / warp_threads;
  const uint32_t slots = kernel.register_bytes / slot_bytes, width = launch.block[0], *grid = launch.grid.data();
  blocks.resize(launch.together ? product(launch.grid) : launch.cluster);
  warps.resize(blocks.size() * per_block);
  registers.resize(warps.size() * slots);
  for (Block& block : blocks) {
    const uint32_t number = uint32_t(&block - blocks.data()), at = first_block + number, y = at / grid[0];
    block.index = at, block.rank = number % launch.cluster, block.leader = &block - block.rank;
    block.leader->cluster_alive += per_block;
    block.first = number * per_block, block.alive = per_block;
    block.shared.assign(launch.shared, char(0xff));  // NaN
    block.shadow.resize((launch.shared + 3) / 4);
    for (uint32_t i = 0; i < per_block; ++i) {
      Warp& warp = warps[block.first + i];
      warp.machine = this, warp.block = &block, warp.index = block.first + i, warp.number = i;
      warp.banks[Operand::registers] = registers[warp.index * slots].bytes;
      warp.banks[Operand::constants] = kernel.constants.data();
      warp.accumulating.resize(slots);
      warp.unfenced.resize(slots, 1);
      warp.unused.resize(slots);
      warp.clocks.assign(warps.size(), base), ++warp.clocks[warp.index];
      const uint32_t begin = i * warp_threads;
      warp.active = warp.alive = all_threads >> (warp_threads - std::min<uint32_t>(warp_threads, threads - begin));
      for (uint32_t t = begin; t < begin + warp_threads; ++t) {
        const uint32_t values[] = {t % width, width, at % grid[0], y % grid[1], y / grid[1], block.rank};
        for (uint32_t j = 0; j < std::size(values); ++j) warp.lanes<uint32_t>(special(j))[t - begin] = values[j];
      }
    }
  }
}

void Machine::run() {
  std::vector<Warp*> left;
  for (Warp& warp : warps) left.push_back(&warp);
  for (uint64_t idle = 0; !left.empty();) {
    if (launch.seed) std::shuffle(left.begin(), left.end(), random);
    bool further = false;
    for (Warp* warp : left)
      if (warp->state == Warp::ready)
        further |= turn(*warp, launch.seed ? 1 + random() % turn_instructions : turn_instructions);
    left.erase(std::remove_if(left.begin(), left.end(), [](Warp* w) { return w->state == Warp::done; }), left.end());
    idle = further ? 0 : idle + 1;
    if (idle) nanoseconds += 1000ull << std::min<uint64_t>(idle / patience, 40);
    if (left.empty() || idle < patience * speeds) continue;
    std::string who = "deadlock: " + std::to_string(left.size()) + " warps wait";
    for (size_t i = 0; i < std::min<size_t>(left.size(), 4); ++i) who += "; " + where(*left[i]);
    throw Trap(who);
  }
  for (const Warp& warp : warps) newest = std::max(newest, warp.clocks[warp.index]);
}

bool Machine::turn(Warp& warp, uint64_t instructions) try {
  std::fill_n(warp.lanes<uint64_t>(timer), warp_threads, nanoseconds);
  for (warp.yields = warp.acts = false; instructions && warp.state == Warp::ready && !warp.yields; --instructions) {
    warp.current = &kernel.code[warp.pc];
    if (warp.pc >= warp.meets || (warp.current->convergent && warp.active != warp.alive)) next(warp);
    Instruction& in = *(warp.current = &kernel.code[warp.pc]);
    if (launch.hold.nanoseconds && is_held(warp, in)) break;
    const Mask mask = warp.active & guarded(warp, in);
    ++warp.pc;
    ++nanoseconds;
    if (kernel.has_wgmma) check_registers(warp, in);
    if (!mask) continue;
    if (in.convergent && mask != warp.active) throw Trap("a barrier under a condition that differs within the warp");
    if (warp.unused_count) note_uses(warp, in);
    in.run(warp, mask);
  }
  return warp.state != Warp::ready || warp.acts;
} catch (const Trap& trap) {
  throw Trap(std::string(trap.what()) + " at " + where(warp));
}

bool Machine::is_held(const Warp& warp, const Instruction& next) {
  const Hold& hold = launch.hold;
  if (warp.block->index != hold.block || (!hold.whole && warp.number != hold.warp)) return false;
  if (nanoseconds < held_until) return true;
  if (held_until || warp.number != hold.warp) return false;
  if (arrivals >= hold.arrivals && !next.opcode.compare(0, hold.at.size(), hold.at)) {
    held_until = nanoseconds + hold.nanoseconds;
    return true;
  }
  arrivals += !next.opcode.compare(0, 11, "red.release");
  return false;
}

// Those that are furthest behind run. At a convergent instruction threads wait until all are there that have not left.
void Machine::next(Warp& warp) {
  if (warp.active) warp.others[warp.pc] |= warp.active;
  for (auto split = warp.others.begin(); split != warp.others.end(); ++split) {
    const auto [pc, threads] = *split;
    if (kernel.code[pc].convergent && threads != warp.alive) continue;
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

// A warp's clock moves on, so that what it does from here on is no part of what `to` has.
void Warp::publish(Clocks& to) {
  join(to, clocks);
  ++clocks[index];
}

uint32_t Barrier::arrive(Warp& warp, uint32_t alive) {
  const uint32_t round = rounds;
  ++arrived;
  warp.acts = true;
  warp.publish(arriving);
  complete(alive);
  return round;
}

void Barrier::wait(Warp& warp, uint32_t round) {
  if (round != rounds) return join(warp.clocks, released);
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
    join(warp->clocks, released);
  }
}

static void branch(Warp& warp, Mask mask) {
  warp.others[warp.current->target] |= mask;
  warp.active &= ~mask;
  warp.machine->next(warp);
}

static void leave(Warp& warp, Mask mask) {
  warp.alive &= ~mask;
  warp.active &= ~mask;
  if (!warp.active) warp.machine->next(warp);
  if (warp.alive) return;
  if (warp.products.open.size() + warp.products.groups.size()) throw Trap("the warp leaves with a wgmma not complete");
  warp.state = Warp::done;
  Block& block = *warp.block;
  --block.alive, --block.leader->cluster_alive;
  for (Barrier& barrier : block.barriers) barrier.complete(block.alive);
  block.leader->cluster_barrier.complete(block.leader->cluster_alive);
  if (block.alive) return;
  for (const auto& [to, complete] : warp.machine->copies)
    if (to >= block.shared.data() && to < block.shared.data() + block.shared.size())
      throw Trap("a block leaves while what is in its shared memory is being copied");
  // Who used this block's shared memory must have done so before it leaves.
  Warp last;
  for (const Warp& w : warp.machine->warps)
    if (w.block == &block) join(last.clocks, w.clocks);
  for (const auto& [visitor, clock] : block.visitors)
    if (!warp.machine->ordered({visitor, clock}, last))
      throw Trap("a block may leave while another uses its shared memory");
}

// bar.sync: "0" or "1, 64", the second the threads that it is for.
static void bind_barrier(Parser& s) {
  const bool counted = s.arguments.size() > 1;
  s.in.run = [=, which = s.read(0), count = s.read(counted)](Warp& warp, Mask) {
    const uint32_t id = *warp.lanes<uint32_t>(which), threads = counted ? *warp.lanes<uint32_t>(count) : 0;
    if (id >= 16 || threads % warp_threads)
      throw Trap("barrier " + std::to_string(id) + " for " + std::to_string(threads) + " threads");
    Barrier& barrier = warp.block->barriers[id];
    if (barrier.arrived && barrier.expected != threads / warp_threads)
      throw Trap("warps that expect different numbers at a barrier");
    barrier.expected = threads / warp_threads;
    barrier.wait(warp, barrier.arrive(warp, warp.block->alive));
  };
}

// "-1"
static void bind_warp_barrier(Parser& s) {
  if (Mask(s.number(0)) != all_threads) throw Trap("a barrier of some threads of a warp");
  s.in.run = [](Warp& warp, Mask mask) {
    if (mask != all_threads) throw Trap("a barrier of a warp after some threads have left");
    ++warp.clocks[warp.index];
  };
}

static void arrive_at_cluster(Warp& warp, Mask) {
  Block& leader = *warp.block->leader;
  if (warp.cluster_round >= 0) throw Trap("a second arrival at the barrier of the cluster without a wait");
  warp.cluster_round = leader.cluster_barrier.arrive(warp, leader.cluster_alive);
}

static void wait_for_cluster(Warp& warp, Mask) {
  if (warp.cluster_round < 0) throw Trap("a wait at the barrier of the cluster without an arrival");
  warp.block->leader->cluster_barrier.wait(warp, uint32_t(std::exchange(warp.cluster_round, -1)));
}

template <Fence of>
static void fence(Parser& s) {
  s.in.run = [](Warp& warp, Mask) { warp.proxied[of] = warp.clocks, ++warp.clocks[warp.index]; };  // later: not fenced
}

// "d, a, b, 31, -1" or "d, a, -1": d = f(values of a, the thread, its b).
template <class F>
static Binder exchange(F f) {
  return [f](Parser& s) {
    const bool shuffles = s.arguments.size() == 5;
    if (shuffles && s.number(3) != 31) throw Trap("a shuffle within segments");
    s.in.run = [=, d = s.write(0), a = s.read(1), b = s.read(shuffles ? 2 : 1), members = s.read(shuffles ? 4 : 2)](
                   Warp& warp, Mask mask) {
      if (mask != all_threads || *warp.lanes<Mask>(members) != all_threads)
        throw Trap("an exchange between some threads of a warp");
      uint32_t values[warp_threads];
      memcpy(values, warp.lanes<uint32_t>(a), sizeof values);
      for (int lane = 0; lane < warp_threads; ++lane)
        warp.lanes<uint32_t>(d)[lane] = f(values, lane, int(warp.lanes<uint32_t>(b)[lane]));
    };
  };
}

void add_control(Table& t) {
  t["trap"] = action([](Warp&, Mask) { throw Trap("a wait of 10 s"); }, false);
  t["bra"] = [](Parser& s) { s.in.target = uint32_t(s.number(0)), s.in.run = branch; };
  t["ret"] = action(leave, false);
  t["bar.sync"] = bind_barrier;
  t["bar.warp.sync"] = bind_warp_barrier;
  t["barrier.cluster.arrive.release"] = action(arrive_at_cluster);
  t["barrier.cluster.wait.acquire"] = action(wait_for_cluster);
  t["fence.proxy.async.shared::cta"] = fence<fence_of_shared>;
  t["fence.proxy.async.global"] = fence<fence_of_global>;
  t["shfl.sync.idx.b32"] = exchange([](const uint32_t* values, int, int from) { return values[from & 31]; });
  t["shfl.sync.bfly.b32"] = exchange([](const uint32_t* values, int lane, int by) { return values[lane ^ (by & 31)]; });
  t["redux.sync.max.s32"] = exchange([](const uint32_t* values, int, int) {
    const int32_t* begin = reinterpret_cast<const int32_t*>(values);
    return uint32_t(*std::max_element(begin, begin + warp_threads));
  });
}

}  // namespace ptx
