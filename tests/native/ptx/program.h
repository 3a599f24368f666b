// Kernels: instructions that are bound to places in a warp's registers.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
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

// A slot of `width` 4 or 8 bytes for each thread. Predicates and values of 8 or 16 bits take 4.
struct Operand {
  enum Bank : uint8_t { registers, constants, none } bank = none;
  uint8_t width = 0;
  uint32_t at = 0;  // a byte offset
};

enum class Space : uint8_t { param, global, shared, cluster, none };

// What each thread of a load or store accesses.
struct Address {
  Operand base;
  int64_t offset = 0;
  Space space = Space::shared;
  size_t bytes = 0;
};

struct Instruction {
  std::function<void(Warp&, Mask)> run;  // for the threads of a mask that is not empty
  Operand guard;                         // a predicate or none; the instruction runs where it differs from `skips`
  Mask skips = 0;
  bool convergent = false;  // runs once all threads are here that have not left
  uint32_t target = 0;      // of a branch
  std::vector<uint32_t> reads, writes;  // registers
  int line = 0;
  std::string opcode, text;
};

struct Kernel {
  std::string name;
  std::vector<Instruction> code;
  std::vector<std::pair<uint32_t, uint32_t>> parameters;  // offsets and sizes
  std::vector<char> constants;
  uint32_t parameter_bytes = 0, register_bytes = 0, most_threads = 1024;
  bool has_wgmma = false;
};

// Registers that every kernel begins with: %globaltimer, which takes two slots, then the others of SPECIAL.
constexpr Operand timer = {Operand::registers, 8, 0};
constexpr Operand special(uint32_t i) { return {Operand::registers, 4, (2 + i) * slot_bytes}; }

// A kernel as tests/support/ptx_text.py reads it.
using Statement = std::tuple<int, std::string, std::string, std::string, std::vector<std::string>,
                             std::vector<std::string>>;  // line, opcode, text, guard, words, arguments
using Source = std::tuple<std::string, uint32_t, decltype(Kernel::parameters),
                          std::vector<std::pair<std::string, uint8_t>>, std::map<std::string, uint64_t>,
                          std::vector<Statement>>;  // name, most threads, parameters, registers, symbols, statements

// Binds the statements of a kernel.
class Parser {
 public:
  explicit Parser(const Source& source);
  std::shared_ptr<Kernel> kernel = std::make_shared<Kernel>();

  // For binders, of the statement at hand. `width`: 4 or 8 bytes, -1: as it comes.
  Operand read(size_t i, int width = 4) { return operand(argument(i), width, false); }
  Operand write(size_t i, int width = 4) { return operand(argument(i), width, true); }
  std::vector<Operand> vector(size_t from, size_t count, int width, bool written);
  Address address(size_t i, Space space, size_t bytes) {  // of two arguments
    return {read(i, -1), int64_t(number(i + 1)), space, bytes};
  }
  uint64_t number(size_t i) { return value(argument(i)); }
  std::vector<std::string> words, arguments;  // words: of the opcode
  Instruction in;

 private:
  void instruction(const Statement& statement);
  Operand operand(const std::string& name, int width, bool written);
  uint64_t value(const std::string& name) const;
  const std::string& argument(size_t i);

  size_t used_ = 0;                          // arguments of the statement
  std::map<std::string, Operand> names_;     // of registers, and of constants
  std::map<std::string, uint64_t> symbols_;  // parameters, shared memory, labels
};

// Sets what an instruction does from its words and operands.
using Binder = std::function<void(Parser&)>;
// By opcode, less the words without meaning here; or by its first word, and the binder reads the others.
using Table = std::map<std::string, Binder>;
void add_arithmetic(Table& table);
void add_access(Table& table);
void add_control(Table& table);
void add_phases(Table& table);

}  // namespace ptx
