// One statement of PTX on its way from text to an instruction. Every binder takes the modifiers that it knows; what is
// left over is an error, so that nothing is ever skipped in silence.
#pragma once

#include <map>

#include "instructions.h"

namespace ptx {

class Decoder;

struct Statement {
  std::string opcode, text;
  std::vector<std::string> modifiers, arguments;
  std::vector<Type> types;
  Instruction in;
  Decoder* decoder = nullptr;

  bool take(const std::string& word);
  // Of several words the one that is there: its place, or `otherwise`.
  int take_one(const std::vector<std::string>& words, int otherwise);
  void ignore(const std::vector<std::string>& words) { while (take_one(words, -1) >= 0) {} }
  void expect(size_t least, size_t most) const;  // arguments
  const std::string& argument(size_t i) const;
  // `width` 4 or 8 bytes, 0: a predicate, -1: as it comes.
  Operand operand(const std::string& name, int width, bool written);
  Operand read(size_t i, int width) { return operand(argument(i), width, false); }
  Operand write(size_t i, int width) { return operand(argument(i), width, true); }
  Operand address(size_t i, int64_t* offset);
  std::vector<Operand> vector(size_t i, int width, bool written);
  uint64_t number(size_t i) const;
};

// Each sets `in.run` (or `in.kind`) and its operands, or returns false for an opcode of somebody else.
bool bind_arithmetic(Statement& s);
bool bind_memory(Statement& s);
bool bind_tensor(Statement& s);
bool bind_control(Statement& s);
void branch_to(Statement& s);  // its label is found when the kernel ends

}  // namespace ptx
