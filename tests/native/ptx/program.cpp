// PTX text, and the kernels it becomes.
#include <regex>
#include <set>
#include <sstream>

#include "machine.h"

namespace ptx {
namespace {

// Hints, and what holds of every use: results round to nearest, and functions are as exact as the host's.
const std::set<std::string> without_meaning = {"rn", "approx", "full", "uni", "aligned"};

Table complete() {
  Table table;
  for (auto add : {add_arithmetic, add_access, add_control}) add(table);
  return table;
}

// The parts between separators that are not within braces or brackets; none is empty.
std::vector<std::string> split(const std::string& s, const char* separators) {
  std::vector<std::string> parts;
  int depth = 0;
  bool begins = true;
  for (char c : s) {
    depth += (c == '{' || c == '[') - (c == '}' || c == ']');
    const bool separates = !depth && strchr(separators, c);
    if (begins && !separates) parts.emplace_back();
    if (!separates) parts.back() += c;
    begins = separates;
  }
  return parts;
}

}  // namespace

uint64_t parse_number(const std::string& s) {
  const bool pattern = s.size() > 2 && s[0] == '0' && strchr("fF", s[1]);  // of a floating-point number
  char* end = nullptr;
  const char* begin = s.c_str() + 2 * pattern;
  const uint64_t value = s[0] == '-' ? uint64_t(strtoll(begin, &end, 0)) : strtoull(begin, &end, pattern ? 16 : 0);
  if (s.empty() || *end) throw Trap("operand '" + s + "' is unknown");
  return value;
}

int size_of(const std::string& type) {
  const size_t digits = type.find_first_of("0123456789");
  return digits == std::string::npos ? 0 : atoi(type.c_str() + digits) / 8;
}

Module Parser::parse(const std::string& text) {
  std::istringstream rows(text);
  std::string before;
  for (std::string row; std::getline(rows, row); ++line_) {
    if (row.find(".loc\t") < 2) continue;  // lines of the source
    for (char c : row.substr(0, row.find("//")) + ' ')
      if (c == ';') statement(std::exchange(before, {}));
      else before += isspace(c) ? ' ' : c;
  }
  if (!kernel_) throw Trap("no kernel in the PTX");
  end_kernel();
  return std::move(kernels_);
}

// Carries out what ends at a semicolon. Before it may stand what has no such end: a kernel's header, braces, labels.
void Parser::statement(std::string text) try {
  const size_t entry = text.find(".entry"), body = text.find('{', entry);
  if (entry != std::string::npos) {
    if (kernel_) end_kernel();
    begin_kernel(text.substr(entry, body - entry));
    text.erase(0, body);
  }
  for (size_t end;; text.erase(0, end + 1)) {
    text.erase(0, text.find_first_not_of(" {}"));
    end = text.find_first_of(" .:");
    if (end == std::string::npos || text[end] != ':') break;
    symbols_[text.substr(0, end)] = kernel_->code.size();
  }
  if (text.find(".shared ") != std::string::npos) {
    const size_t name = text.rfind(' ') + 1, end_of_name = text.rfind("[]");
    if (end_of_name == std::string::npos) throw Trap("shared memory whose size a launch does not give");
    symbols_[text.substr(name, end_of_name - name)] = 0;
  } else if (!text.rfind(".reg", 0)) {
    declare(text);
  } else if (kernel_ && !text.empty() && text.rfind(".pragma", 0)) {
    instruction(text);
  }
} catch (const Trap& trap) {
  throw Trap("line " + std::to_string(line_) + ": " + trap.what() + ": " + text.substr(0, 160));
}

// ".entry name(.param .align 8 .b8 a[64], .param .u64 .ptr .global .align 1 b) .maxntid 256, 1, 1"
void Parser::begin_kernel(const std::string& header) {
  static const std::regex form(R"(\.entry ([\w$]+)\((.*)\)(?:.*ntid (\d+))?)");
  static const std::regex parameter(R"((?:\.align (\d+) +)?\.[busf](\d+) (?:.* )?([\w$]+)(?:\[(\d+)\])?)");
  std::smatch m, p;
  if (!std::regex_search(header, m, form)) throw Trap("an unknown kind of kernel");
  kernels_.push_back(std::make_shared<Kernel>());
  kernel_ = kernels_.back().get();
  kernel_->name = m[1];
  if (m[3].matched) kernel_->most_threads = uint32_t(std::stoi(m[3]));
  for (const std::string& part : split(m[2], ",")) {
    if (!std::regex_search(part, p, parameter)) throw Trap("an unknown kind of parameter");
    const uint32_t size = uint32_t(std::stoi(p[2])) / 8, align = p[1].matched ? uint32_t(std::stoi(p[1])) : size;
    const uint32_t at = (kernel_->parameter_bytes + align - 1) / align * align;
    kernel_->parameters.push_back({at, p[4].matched ? size * uint32_t(std::stoi(p[4])) : size});
    kernel_->parameter_bytes = at + kernel_->parameters.back().second;
    symbols_[p[3]] = at;
  }
  names_.clear();
  for (const char* special : special_registers) declare(special);
}

void Parser::end_kernel() {
  instruction("ret");
  for (Instruction& branch : kernel_->code) {
    if (!branch.label.empty() && !symbols_.count(branch.label)) throw Trap("no label " + branch.label);
    branch.target = uint32_t(symbols_[branch.label]);
  }
}

// ".reg .b32 %r<10>" or ".reg .b32 a, b"
void Parser::declare(const std::string& text) {
  const std::vector<std::string> parts = split(text, " ,");
  const uint8_t width = parts.at(1) == ".pred" ? 0 : size_of(parts[1]) == 8 ? 8 : 4;
  for (size_t part = 2; part < parts.size(); ++part) {
    const std::string& name = parts[part];
    const size_t many = name.find('<');
    for (int i = 0; i < (many == std::string::npos ? 1 : atoi(name.c_str() + many + 1)); ++i) {
      const std::string number = many == std::string::npos ? "" : std::to_string(i);
      names_[name.substr(0, many) + number] = {Operand::registers, width, kernel_->register_bytes};
      kernel_->register_bytes += width == 8 ? 2 * slot_bytes : slot_bytes;
    }
  }
}

// "@!%p add.s32 %r1, %r2, 7"
void Parser::instruction(const std::string& text) {
  in = Instruction();
  in.line = line_;
  in.text = text;
  arguments = split(text, " ,");
  const bool guarded = text[0] == '@';
  const std::string guard = guarded ? arguments[0] : "@1";
  in.mnemonic = arguments.at(guarded);
  arguments.erase(arguments.begin(), arguments.begin() + 1 + guarded);
  in.skips = guard[1] == '!' ? all_threads : 0;
  in.guard = operand(guard.substr(in.skips ? 2 : 1), 0, false);
  words.clear();
  std::string key;
  for (const std::string& word : split(in.mnemonic, "."))
    if (!without_meaning.count(word)) words.push_back(word), key += "." + word;
  in.convergent = std::count(words.begin(), words.end(), "sync") > 0;
  const bool moves_parts = words[0] == "mov" && text.find('{') != std::string::npos;
  static const Table table = complete();
  auto found = table.find(moves_parts ? "mov" : key.substr(1));
  if (found == table.end()) found = table.find(words[0]);
  if (found == table.end()) throw Trap("unknown instruction " + in.mnemonic);
  used_ = 0;
  found->second(*this);
  if (used_ != arguments.size()) throw Trap("unexpected number of operands");
  kernel_->has_wgmma |= words[0] == "wgmma";
  kernel_->code.push_back(std::move(in));
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
  uint64_t value = symbols_.count(name) ? symbols_[name] : parse_number(name);
  if (width == 0) value = value ? all_threads : 0;
  const uint8_t size = width == 8 ? 8 : 4;
  std::vector<char>& image = kernel_->constants;
  const Operand next = {Operand::constants, width ? size : uint8_t(0), uint32_t(image.size())};
  const auto [constant, fresh] = names_.insert({name + ":" + std::to_string(width), next});
  const char* bytes = reinterpret_cast<const char*>(&value);  // little-endian, as the device
  for (int i = 0; i < warp_threads && fresh; ++i) image.insert(image.end(), bytes, bytes + size);
  return constant->second;
}

std::vector<Operand> Parser::vector(size_t i, int width, bool written) {
  const std::string& s = argument(i);
  std::vector<Operand> result;
  for (const std::string& name : split(s.front() == '{' ? s.substr(1, s.size() - 2) : s, " ,"))
    result.push_back(operand(name, width, written));
  return result;
}

// "[%rd1 + -16]"
Address Parser::address(size_t i, Space space, size_t bytes) {
  const std::string& s = argument(i);
  if (s.size() < 2 || s.front() != '[' || s.back() != ']') throw Trap("expected an address, got '" + s + "'");
  const std::vector<std::string> parts = split(s.substr(1, s.size() - 2), " +");
  Address result = {operand(parts.at(0), -1, false), 0, space, bytes};
  for (size_t part = 1; part < parts.size(); ++part) result.offset += int64_t(parse_number(parts[part]));
  return result;
}

const std::string& Parser::argument(size_t i) {
  if (i >= arguments.size()) throw Trap("unexpected number of operands");
  used_ = std::max(used_, i + 1);
  return arguments[i];
}

}  // namespace ptx
