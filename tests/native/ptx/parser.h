// PTX text to kernels. A binder sets what an instruction does from its words and operands.
#pragma once

#include <map>

#include "kernel.h"

namespace ptx {

class Parser {
 public:
  Module parse(const std::string& text);

  // For binders, of the statement at hand. `width`: 4 or 8 bytes, 0: a predicate, -1: as it comes.
  Operand read(size_t i, int width = 4) { return operand(argument(i), width, false); }
  Operand write(size_t i, int width = 4) { return operand(argument(i), width, true); }
  std::vector<Operand> vector(size_t i, int width, bool written);
  Address address(size_t i, Space space, size_t bytes);
  uint64_t number(size_t i);
  void branch_to(size_t i);  // its label is found when the kernel ends
  Operand operand(const std::string& name, int width, bool written);

  std::vector<std::string> words, arguments;  // words: of the mnemonic
  Instruction in;

 private:
  bool statement(const std::string& text, char end);
  void begin_kernel(const std::string& header);
  void end_scope();
  void share(const std::string& text);
  void declare(const std::string& text);
  void instruction(const std::string& text);
  const std::string& argument(size_t i);
  Operand constant(uint64_t value, int width);

  Module kernels_;
  Kernel* kernel_ = nullptr;  // null between kernels
  int line_ = 1;
  size_t used_ = 0;  // arguments of the statement
  uint32_t shared_bytes_ = 0;
  bool open_ = false;  // shared memory ends with the variable whose size a launch gives
  std::vector<std::map<std::string, Operand>> scopes_;  // the first: registers that every warp begins with
  std::map<std::string, uint64_t> symbols_;             // parameters and shared variables
  std::map<std::pair<uint64_t, int>, uint32_t> constants_;
  std::map<std::string, uint32_t> labels_;
  std::vector<std::pair<size_t, std::string>> branches_;
};

int size_of(const std::string& type);  // bytes of "s32"; 0 of what names no size

using Binder = std::function<void(Parser&)>;
// By mnemonic, less the words without meaning here; or by opcode, and the binder reads the other words.
using Table = std::map<std::string, Binder>;
void add_arithmetic(Table& table);
void add_access(Table& table);
void add_tensor(Table& table);
void add_control(Table& table);

}  // namespace ptx
