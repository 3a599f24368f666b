// The machine: warps, blocks and clusters, and which warp runs next.
#pragma once

#include <array>
#include <deque>
#include <random>
#include <unordered_map>
#include <utility>

#include "memory.h"

namespace ptx {

struct Block;
struct Machine;

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

// What registers are to the wgmmas that are not complete.
struct ProductRegisters {
  std::vector<uint16_t> accumulating, reading;  // how many write it, read it
  std::vector<uint8_t> unfenced;                // written by another instruction since the last wgmma.fence
  std::vector<char> values;                     // what accumulators will be
};

struct Warp {
  enum State : uint8_t { ready, waiting, done } state = ready;
  bool yields = false, spins = false;  // spins: has found nothing new since its last effect on others
  Machine* machine = nullptr;
  Block* block = nullptr;
  uint32_t index = 0, number = 0;      // among the warps that run together; within its block
  char* banks[2] = {};                 // as Operand::Bank
  Instruction* current = nullptr;
  uint32_t pc = 0, meets = ~0u;        // of the next instruction; the next pc where others stand
  Mask active = 0, alive = 0;
  std::map<uint32_t, Mask> others;     // by pc: threads that stand elsewhere
  Clocks clocks, fenced, proxied, pending;  // as of the last fence of a kind; pending: what a fence will acquire
  int64_t cluster_round = -1;          // of the barrier of the cluster, where it has arrived
  std::map<uint32_t, uint64_t> polled;  // by pc: what the last load found
  Pending copies, products;
  ProductRegisters product_registers;  // in kernels with wgmma

  template <class T>
  T* lanes(const Operand& o) const {
    return reinterpret_cast<T*>(banks[o.bank] + o.at);
  }
  Clock clock() const { return clocks.of.empty() ? 0 : clocks.of[index]; }
  void publish(Clocks& to);  // what comes after is no part of it
};

struct Barrier {
  uint32_t arrived = 0, expected = 0, rounds = 0;  // expected: warps; 0: all that have not left
  Clocks arriving, released;                       // released: of the last round
  std::vector<Warp*> waiting;

  void arrive(Warp& warp);
  void wait(Warp& warp);
  void complete(uint32_t alive);  // the round, if all have arrived
};

struct Cluster {
  std::vector<Block*> blocks;
  uint32_t alive = 0;  // warps
  Barrier barrier;
};

struct Block {
  Cluster* cluster = nullptr;
  uint32_t index = 0, rank = 0, first = 0, alive = 0;  // first: of its warps; alive: warps
  std::vector<char> shared;
  Shadow shadow;
  Barrier barriers[16];
  std::map<uint32_t, Clock> visitors;  // last accesses of warps of other blocks
};

struct Launch {
  std::array<uint32_t, 3> grid, block;
  uint32_t shared = 0, cluster = 1, seed = 0;
  bool together = false;  // cooperative
};

struct Settings {
  bool checks = true;    // of order: races, copies and products that are not complete; bounds are always checked
  bool traffic = false;  // sectors and bank conflicts are counted
  uint32_t seed = 0;
};

// Memory that a thread accesses; `shadow`: null where no order is checked.
struct Place {
  char* at = nullptr;
  Shadow* shadow = nullptr;
  size_t offset = 0;  // in the shadow
};

struct Machine {
  Machine(Kernel& kernel, const Launch& launch, GlobalMemory& global, const Settings& settings);
  void run(const char* parameters);

  void next(Warp& warp);  // chooses the threads that run
  Place place(Warp& warp, Space space, uint64_t address, size_t bytes);
  bool ordered(const Epoch& before, const Warp& warp) const {
    return before.clock <= base || warp.clocks.of[before.warp] >= before.clock;
  }

  Kernel& kernel;
  const Launch launch;
  const Settings settings;
  GlobalMemory& global;
  const char* parameters = nullptr;
  std::mt19937 random;
  std::vector<Warp> warps;  // that run together, by blocks
  std::vector<Block> blocks;
  std::vector<Cluster> clusters;
  std::unordered_map<const char*, Clocks> released;  // by address
  uint64_t nanoseconds = 0;
  Clock base = 0;  // of everything before this wave

 private:
  void start(uint32_t first_block);
  void start(Warp& warp);
  void schedule();
  bool turn(Warp& warp, uint64_t instructions);  // whether it came further
  std::string where(const Warp& warp) const;
};

// For instructions.
Place place_of(Warp& warp, const Address& a, int lane);
void count(Warp& warp, const Address& a, Mask mask);
void check_registers(Warp& warp, const Instruction& in);  // in kernels with wgmma

}  // namespace ptx
