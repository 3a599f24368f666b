// The machine: memory, the warps, blocks and clusters that access it, and registers as C++ values.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <deque>
#include <random>
#include <type_traits>
#include <unordered_map>
#include <utility>

#include "program.h"

namespace ptx {

struct Block;
struct Machine;

// Memory as the checks see it. A shadow remembers of every 4 bytes which of them were ever written, who wrote them last
// and who has read them since; vector clocks say which of these accesses the synchronisation has put in order.
using Clock = uint32_t;
using Clocks = std::vector<Clock>;  // what one warp has seen of every warp that runs with it
void join(Clocks& to, const Clocks& from);

struct Epoch {
  uint32_t warp = 0;
  Clock clock = 0;
};

// `same`: writes the bytes that are there. Several warps may do so without order between them, as Triton's do.
// From `starts` to `ends` nobody may touch what an asynchronous copy writes, nor write what the tensor cores read.
enum class Use { plain, atomic, same, starts, ends };

struct Word {
  Epoch written, read;
  uint16_t operands = 0;                    // wgmmas that read it
  uint8_t defined = 0, last = 0, seen = 0;  // bytes: ever written, last written, read since
  int8_t writer = 0, reader = 0;            // threads of the warps in `written` and `read`
  bool copies = false;
  bool by_proxy = false;                    // last written by a bulk copy
  std::vector<Epoch> others;  // that have read since, in no order with `read`
};
using Shadow = std::vector<Word>;

// In place of a thread of a warp: all at once, and several of them.
constexpr int whole_warp = -1, several = warp_threads;

// Memory that a thread accesses; `shadow`: null where no order is checked. These throw a Trap for bytes that were never
// written, are still being copied or race.
struct Place {
  char* at = nullptr;
  Shadow* shadow = nullptr;
  size_t offset = 0;  // in the shadow
  void read(size_t bytes, const Warp& warp, int thread, Use use = Use::plain) const;
  // `issued`: the warp's clock then, of copies whose end a barrier in shared memory makes known; 0: as of now
  void write(size_t bytes, const Warp& warp, int thread, Use use, Clock issued = 0) const;
  Word* word() const { return shadow ? &(*shadow)[offset / 4] : nullptr; }
};

// A fence.proxy.async orders what threads did before with what bulk copies and the tensor cores do after: in global
// memory that of the warp that copies, in shared memory one of the block that owns the memory.
enum Fence { fence_of_shared, fence_of_global };
// A Trap unless what was written is in order before what `warp` reads so.
void demand_visible(const Word& word, const Warp& warp, Fence fence, const Block& owner);
// A Trap unless what was read in shared memory is in order before a bulk copy to it. Reads whose values were used before
// the reader arrived at a barrier of the cluster have ended, and need no fence.
void demand_read(const Word& word, const Warp& warp, const Block& owner);

// Global memory is what of the host's is registered.
struct GlobalMemory {
  struct Region {
    uintptr_t begin, end;
    std::unique_ptr<Shadow> shadow;
  };
  std::deque<Region> regions;  // the last registered first

  void add(uintptr_t begin, size_t bytes, const std::string& name, bool written);
  Place find(uintptr_t begin, size_t bytes) const;  // throws if no region has all of it
  void written(uintptr_t begin, size_t bytes);      // by the host
};

// Copies or products under way, by groups: what completes them.
struct Pending {
  using Group = std::vector<std::function<void()>>;
  Group open;
  std::deque<Group> groups;
  void commit() { groups.push_back(std::exchange(open, {})); }
  void wait(size_t left) {
    for (; groups.size() > left; groups.pop_front())
      for (const auto& complete : groups.front()) complete();
  }
};

struct Warp {
  enum State : uint8_t { ready, waiting, done } state = ready;
  bool yields = false, acts = false;  // in this turn; acts: has an effect on others
  Machine* machine = nullptr;
  Block* block = nullptr;
  uint32_t index = 0, number = 0;  // among the warps that run together; within its block
  char* banks[2] = {};             // as Operand::Bank
  Instruction* current = nullptr;
  uint32_t pc = 0, meets = ~0u;  // of the next instruction; the next pc where others stand
  Mask active = 0, alive = 0;
  std::map<uint32_t, Mask> others;  // by pc: threads that stand elsewhere
  Clocks clocks, proxied[2];        // proxied: as of the last fence.proxy.async, by Fence
  int64_t cluster_round = -1;       // of the barrier of the cluster, where it has arrived
  Pending copies, products;
  // By register, in kernels with wgmma: how many products that are not complete write it, and whether another
  // instruction has written it since the last wgmma.fence.
  std::vector<uint16_t> accumulating;
  std::vector<uint8_t> unfenced;
  // Registers loaded from shared memory and not used since, and their number; the last clock at which there was none as
  // the warp arrived at another block's mbarrier.
  std::vector<uint8_t> unused;
  uint32_t unused_count = 0;
  Clock used = 0;

  template <class T>
  T* lanes(const Operand& o) const {
    return reinterpret_cast<T*>(banks[o.bank] + o.at);
  }
  void publish(Clocks& to);  // what comes after is no part of it
};

struct Barrier {
  uint32_t arrived = 0, expected = 0, rounds = 0;  // expected: warps; 0: all that have not left
  Clocks arriving, released;                       // released: of the last round
  std::vector<Warp*> waiting;

  uint32_t arrive(Warp& warp, uint32_t alive);  // the round
  void wait(Warp& warp, uint32_t round);
  void complete(uint32_t alive);  // the round, if all have arrived
};

// An mbarrier.
struct PhaseBarrier {
  PhaseBarrier(uint32_t count, const Warp& warp);
  uint32_t arrivals, missing, phase = 0;
  int64_t bytes = 0;  // that are expected, less those that came
  Epoch begun;
  bool published = false;      // to the cluster
  bool stored = false;         // by st.async, which a wait of block scope does not make visible
  Clocks arriving, released;  // released: of all phases that ended

  void expect(int64_t more);
  void arrive(const Clocks& clocks);
  void release(const Clocks& clocks);  // without an arrival; ends the phase if nothing is missing
};

struct Block {
  Block* leader = nullptr;                             // rank 0 of the cluster
  uint32_t index = 0, rank = 0, first = 0, alive = 0;  // first: of its warps; alive: warps
  std::vector<char> shared;
  Shadow shadow;
  Barrier barriers[16];
  Barrier cluster_barrier;             // in use of the leader alone, as
  uint32_t cluster_alive = 0;          // these warps
  std::map<uint32_t, Clock> visitors;  // last accesses of warps of other blocks
};

// A warp that does not run for some time, or a whole block: from its first instruction `at` (a beginning of an opcode)
// on after so many arrivals at a grid barrier.
struct Hold {
  uint32_t block, warp;
  bool whole;
  uint32_t arrivals;
  std::string at;
  uint64_t nanoseconds = 0;  // 0: none is held
};

// Of all launches until others are set.
struct Settings {
  uint32_t seed = 0;  // of the order in which warps run; 0: by turns
  Hold hold = {};
};

struct Launch : Settings {
  std::array<uint32_t, 3> grid, block;
  uint32_t shared, cluster;
  bool together;  // cooperative
  std::vector<char> parameters;
};

// The blocks that run together: a cluster, or all of a cooperative launch.
struct Machine {
  Machine(Kernel& kernel, const Launch& launch, GlobalMemory& global, uint32_t first_block);
  void run();

  void next(Warp& warp);  // chooses the threads that run
  Place place(Warp& warp, Space space, uint64_t address, size_t bytes);
  bool ordered(const Epoch& before, const Warp& warp) const {
    return before.clock <= base || warp.clocks[before.warp] >= before.clock;
  }

  Kernel& kernel;
  const Launch& launch;
  GlobalMemory& global;
  const Clock base;         // of everything before
  std::vector<Warp> warps;  // by blocks
  std::vector<Block> blocks;
  std::unordered_map<const char*, Clocks> released;      // by address
  std::unordered_map<const char*, PhaseBarrier> phases;  // by address
  std::vector<std::pair<const char*, std::function<void()>>> copies;  // under way in clusters: where to; the end

  bool complete_copy();  // one of them, if there is one

 private:
  bool turn(Warp& warp, uint64_t instructions);  // whether that affects others
  bool is_held(const Warp& warp, const Instruction& next);
  std::string where(const Warp& warp) const;

  std::mt19937 random;
  uint64_t nanoseconds = 0, held_until = 0;
  uint32_t arrivals = 0;  // of the warp that may be held
};

void run(Kernel& kernel, const Launch& launch, GlobalMemory& global);

Place place_of(Warp& warp, const Address& a, int lane);

// How a register has a value in a thread: predicates and values of 8 and 16 bits take 4 bytes.
template <class T>
using Stored = std::conditional_t<sizeof(T) < 4, uint32_t, T>;

// A register of 4 or 8 bytes in one thread.
inline uint64_t value_of(const Warp& warp, const Operand& o, int lane) {
  return o.width == 8 ? warp.lanes<uint64_t>(o)[lane] : warp.lanes<uint32_t>(o)[lane];
}
inline void set(const Warp& warp, const Operand& o, int lane, uint64_t value) {
  if (o.width == 8) warp.lanes<uint64_t>(o)[lane] = value;
  else if (o.width == 4) warp.lanes<uint32_t>(o)[lane] = uint32_t(value);
}

template <class F>
inline void for_threads(Mask mask, const F& f) {
  if (mask == all_threads) {
#pragma GCC ivdep
    for (int i = 0; i < warp_threads; ++i) f(i);
  } else {
    for (; mask; mask &= mask - 1) f(__builtin_ctz(mask));
  }
}

// d = f(operands) in each thread. The second argument has f's types.
template <class F, class D, class... S>
Binder lanes(F f, const std::function<D(S...)>&) {
  return [f](Parser& s) {
    size_t i = 1;
    const Operand d = s.write(0, sizeof(Stored<D>));
    s.in.run = [f, d, from = std::array{s.read(i++, sizeof(Stored<S>))...}](Warp& warp, Mask mask) {
      Stored<D>* to = warp.lanes<Stored<D>>(d);
      const auto sources = std::apply([&](auto... o) { return std::tuple(warp.lanes<Stored<S>>(o)...); }, from);
      const auto in_thread = [&](auto*... source) {
        for_threads(mask, [&](int lane) { to[lane] = Stored<D>(f(S(source[lane])...)); });
      };
      std::apply(in_thread, sources);
    };
  };
}

template <class F>
Binder lanes(F f) {
  return lanes(f, std::function(f));
}

// What has no operands; `convergent`: of the full warp.
inline Binder action(void (*run)(Warp&, Mask), bool convergent = true) {
  return [=](Parser& s) { s.in.run = run, s.in.convergent = convergent; };
}

// Waits until no more groups are under way than the operand says.
inline Binder wait_for(Pending Warp::* pending) {
  return [=](Parser& s) {
    s.in.convergent = true;
    s.in.run = [pending, left = s.number(0)](Warp& warp, Mask) { (warp.*pending).wait(left); };
  };
}

}  // namespace ptx
