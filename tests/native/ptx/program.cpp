// Kernels, from statements.
#include "machine.h"

namespace ptx {

Parser::Parser(const Source& source) {
  const auto& [name, most_threads, parameters, registers, symbols, statements] = source;
  kernel->name = name, kernel->most_threads = most_threads, kernel->parameters = parameters, symbols_ = symbols;
  for (const auto& [at, size] : parameters) kernel->parameter_bytes = at + size;
  for (const auto& [name, width] : registers) {
    names_[name] = {Operand::registers, width, kernel->register_bytes};
    kernel->register_bytes += width == 8 ? 2 * slot_bytes : slot_bytes;
  }
  for (const Statement& statement : statements) instruction(statement);
  instruction({0, "ret", "the end", "_", {"ret"}, {}});
}

void Parser::instruction(const Statement& statement) try {
  in = Instruction();
  std::string guard, key;
  std::tie(in.line, in.opcode, in.text, guard, words, arguments) = statement;
  in.skips = guard[0] == '!' ? all_threads : 0;
  in.guard = operand(guard.substr(in.skips ? 1 : 0), 4, false);
  for (const std::string& word : words) key += (key.empty() ? "" : ".") + word;
  in.convergent = std::count(words.begin(), words.end(), "sync") > 0;
  static const Table table = [] {
    Table all;
    for (auto add : {add_arithmetic, add_access, add_control, add_phases}) add(all);
    return all;
  }();
  auto found = table.find(key);
  if (found == table.end()) found = table.find(words[0]);
  if (found == table.end()) throw Trap("unknown instruction " + in.opcode);
  used_ = 0;
  found->second(*this);
  if (used_ != arguments.size()) throw Trap("unexpected number of operands");
  kernel->has_wgmma |= words[0] == "wgmma";
  kernel->code.push_back(std::move(in));
} catch (const Trap& trap) {
  throw Trap("line " + std::to_string(in.line) + ": " + trap.what() + ": " + in.text.substr(0, 160));
}

Operand Parser::operand(const std::string& name, int width, bool written) {
  const auto found = names_.find(name);
  if (found != names_.end()) {
    if (width >= 0 && found->second.width != width)
      throw Trap("operand " + name + " has another width than the instruction");
    (written ? in.writes : in.reads).push_back(found->second.at);
    return found->second;
  }
  if (name == "_") return {};
  if (written) throw Trap("no register " + name);
  const uint64_t number = value(name);
  std::vector<char>& image = kernel->constants;
  const Operand next = {Operand::constants, uint8_t(width == 8 ? 8 : 4), uint32_t(image.size())};
  const auto [constant, fresh] = names_.insert({name + ":" + std::to_string(next.width), next});
  const char* bytes = reinterpret_cast<const char*>(&number);  // little-endian, as the device
  for (int i = 0; i < warp_threads && fresh; ++i) image.insert(image.end(), bytes, bytes + next.width);
  return constant->second;
}

// Of a symbol, or of a number: "0f" precedes the pattern of a floating-point one.
uint64_t Parser::value(const std::string& name) const {
  if (const auto found = symbols_.find(name); found != symbols_.end()) return found->second;
  const bool pattern = name[0] == '0' && name.find_first_of("fF") == 1;
  char* end = nullptr;
  const uint64_t value = strtoull(name.c_str() + 2 * pattern, &end, pattern ? 16 : 0);  // of "-1" 2**64 - 1
  if (*end) throw Trap("operand '" + name + "' is unknown");
  return value;
}

std::vector<Operand> Parser::vector(size_t from, size_t count, int width, bool written) {
  std::vector<Operand> result;
  for (size_t i = from; i < from + count; ++i) result.push_back(operand(argument(i), width, written));
  return result;
}

const std::string& Parser::argument(size_t i) {
  if (i >= arguments.size()) throw Trap("unexpected number of operands");
  used_ = std::max(used_, i + 1);
  return arguments[i];
}

}  // namespace ptx
