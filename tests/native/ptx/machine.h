// The machine: warps, blocks, clusters, and who runs next.
#pragma once

#include <deque>
#include <random>

#include "memory.h"

namespace ptx {

class Machine;
struct Block;

struct Split {
  uint32_t pc;
  Mask threads;
};

struct Copy {  // of cp.async
  uint32_t to;
  uint64_t from;
  uint32_t bytes, given;
};

struct Product {  // one wgmma that is not complete
  const Instruction* instruction;
  std::vector<uint32_t> operands;  // shared memory that it reads, in pieces of 16 bytes
};

// What a warp's registers are to its wgmmas, by register; only in kernels that have some.
struct ProductState {
  std::vector<uint16_t> accumulating, reading;  // how many that are not complete write it, read it
  std::vector<uint8_t> unfenced;                // written by another instruction since the last wgmma.fence
  std::vector<char> values;                     // what accumulators will be
};

struct Warp {
  enum State : uint8_t { ready, waiting, done };
  Machine* machine = nullptr;
  Block* block = nullptr;
  uint32_t index = 0;  // among the warps that run together
  uint32_t number = 0;  // within its block
  State state = ready;
  char* banks[3] = {};  // as Operand::Bank
  Mask* predicates = nullptr;
  std::vector<char> memory;  // of registers and predicates
  uint32_t pc = 0, meets = ~0u;  // `meets`: where the next of `others` stands
  Mask active = 0, alive = 0;
  std::vector<Split> others, parked;  // by falling pc; parked: at a convergent instruction, until the rest comes
  const char* waits_at = "";
  Clocks clocks, fenced, proxied, pending;  // pending: what a fence will acquire
  bool arrived_at_cluster = false, at_cluster_wait = false;
  uint64_t cluster_generation = 0;
  std::vector<Copy> copies;
  std::deque<std::vector<Copy>> copy_groups;
  std::vector<Product> products;
  std::deque<std::vector<Product>> product_groups;
  std::unique_ptr<ProductState> product_state;
  std::map<uint32_t, uint64_t> polled;  // by pc: what the last load found
  bool yields = false, spins = false;  // spins: has found nothing new since its last effect on others

  template <class T>
  T* lanes(const Operand& o) const {
    return reinterpret_cast<T*>(banks[o.bank] + o.at);
  }
  void check_registers(const Instruction& in);  // in kernels with wgmma
  Clock clock() const { return clocks.of.empty() ? 0 : clocks.of[index]; }
};

struct Barrier {
  uint32_t arrived = 0, expected = 0;
  Clocks clocks;
  std::vector<Warp*> waiting;
};

struct Cluster {
  std::vector<Block*> blocks;
  uint32_t arrived = 0;
  uint64_t generation = 0;
  Clocks clocks, released;  // of those arriving, of the last generation
};

struct Block {
  Cluster* cluster = nullptr;
  uint32_t rank = 0, index = 0, alive = 0;  // alive: warps
  std::vector<char> shared;
  Shadow shadow;
  std::vector<Warp> warps;
  Barrier barriers[16];
  std::vector<Epoch> visitors;  // last accesses of warps of other blocks
};

struct Launch {
  uint32_t grid[3] = {1, 1, 1}, block[3] = {1, 1, 1};
  uint32_t shared = 0, cluster = 1, seed = 0;
  bool together = false;  // cooperative
};

struct Settings {
  bool checks = true;     // of order: races, copies and products that are not complete; bounds are always checked
  bool unwritten = true;  // with `checks`: reading what was never written is a trap
  bool traffic = false;   // sectors and bank conflicts are counted
  uint32_t seed = 0;
};

class Machine {
 public:
  Machine(Kernel& kernel, const Launch& launch, GlobalMemory& global, const Settings& settings);
  void run(const char* parameters);

  // For instructions.
  [[noreturn]] void fail(const Warp& warp, const std::string& what) const;
  char* shared(Warp& warp, const Instruction& in, uint32_t address, int bytes, Block** of);
  char* global_memory(uint64_t address, int bytes, Region** region);
  void acquire(Warp& warp, uintptr_t address, Order order);
  void release(Warp& warp, uintptr_t address, Order order);
  void fence(Warp& warp);
  void poll(Warp& warp, uint64_t value);
  uint64_t nanoseconds() const { return executed_ + skipped_; }
  Counts& counts(const Warp& warp) { return kernel.counts[warp.pc]; }
  bool ordered(const Epoch& epoch, const Warp& warp) const {
    return epoch.clock <= base_ || warp.clocks.of[epoch.warp] >= epoch.clock;
  }

  bool visible_to_proxy(const Epoch& written, const Warp& warp) const;

  Kernel& kernel;
  const Launch launch;
  const Settings settings;
  const char* parameters = nullptr;

 private:
  void run_wave(uint32_t first, uint32_t blocks);
  void prepare(Block& block, uint32_t index);
  void prepare(Warp& warp, Block& block, uint32_t number);
  void schedule(std::vector<Warp*>& order);
  bool turn(Warp& warp, uint64_t instructions);  // whether it came further
  bool special(Warp& warp, const Instruction& in, Mask mask);  // false: the warp's turn ends
  bool converged(Warp& warp, const Instruction& in);
  void branch(Warp& warp, const Instruction& in, Mask mask);
  void leave(Warp& warp, Mask mask);
  void barrier(Warp& warp, const Instruction& in);
  void complete(Block& block, Barrier& barrier);
  void arrive_at_cluster(Warp& warp, bool releases);
  void complete(Cluster& cluster);
  void publish(Warp& warp, Clocks& to);
  bool cluster_wait(Warp& warp, bool acquires);
  void end_of(Block& block);
  void next(Warp& warp);
  void add(Warp& warp, Split split);
  std::string where(const Warp& warp) const;

  GlobalMemory& global_;
  std::mt19937 random_;
  std::deque<Block> blocks_;
  std::deque<Cluster> clusters_;
  std::unordered_map<uintptr_t, Clocks> released_;
  uint64_t executed_ = 0, skipped_ = 0;
  uint32_t wave_warps_ = 0;
  Clock base_ = 0;
  static Clock newest_;  // no clock of an earlier wave or launch is above it
};

}  // namespace ptx
