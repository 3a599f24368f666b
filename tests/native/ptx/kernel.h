// PTX as the interpreter runs it: kernels of instructions that are bound to places in a warp's registers.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace ptx {

struct Warp;
using Mask = uint32_t;  // a bit for each thread of a warp
constexpr int warp_threads = 32;
constexpr Mask all_threads = ~Mask(0);
constexpr uint32_t slot_bytes = 4 * warp_threads;

// What a program does that the hardware leaves undefined or refuses.
struct Trap : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A slot of `width` 4 or 8 bytes for each thread (a value of 8 or 16 bits takes 4); width 0: a predicate, one Mask.
struct Operand {
  enum Bank : uint8_t { registers, constants, none };
  Bank bank = none;
  uint8_t width = 0;
  uint32_t at = 0;  // a byte offset
};

enum class Space : uint8_t { param, global, shared, cluster };

// What each thread of a load or store accesses.
struct Address {
  Operand base;
  int64_t offset = 0;
  Space space = Space::shared;
  size_t bytes = 0;
};

// What the executions of one instruction came to.
struct Counts {
  uint64_t executed = 0, threads = 0, bytes = 0;
  uint64_t sectors = 0;                // of 32 bytes, of global memory
  uint64_t wavefronts = 0, ideal = 0;  // of shared memory; `ideal` without bank conflicts
};

struct Instruction {
  std::function<void(Warp&, Mask)> run;  // for the threads of a mask that is not empty
  Operand guard;                         // a predicate; the instruction runs where it differs from `skips`
  Mask skips = 0;
  bool convergent = false;               // runs once the threads of `members` that have not left are all here
  Operand members;
  uint32_t target = 0;                   // of a branch
  Counts counts;
  std::vector<uint32_t> reads, writes;   // registers
  int line = 0;
  std::string mnemonic, text;
};

struct Parameter {
  uint32_t at, size;
};

struct Kernel {
  std::string name;
  std::vector<Instruction> code;
  std::vector<Parameter> parameters;
  std::vector<char> constants;
  uint32_t parameter_bytes = 0, register_bytes = 0, static_shared = 0, most_threads = 1024;
  bool has_wgmma = false;
};

using Module = std::vector<std::shared_ptr<Kernel>>;
Module parse(const std::string& text);

// Registers that every warp begins with: %globaltimer, which takes two slots, then these.
constexpr Operand timer = {Operand::registers, 8, 0};
constexpr const char* special_names[] = {
    "%tid.x",   "%tid.y",   "%tid.z",   "%ntid.x",   "%ntid.y",   "%ntid.z",         "%ctaid.x",
    "%ctaid.y", "%ctaid.z", "%nctaid.x", "%nctaid.y", "%nctaid.z", "%cluster_ctarank"};
constexpr uint32_t specials = sizeof(special_names) / sizeof(*special_names);
constexpr uint32_t place_of_special(uint32_t i) { return (2 + i) * slot_bytes; }

}  // namespace ptx
