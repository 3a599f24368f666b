#include "program.h"

#include <algorithm>
#include <cstring>
#include <regex>
#include <set>
#include <sstream>

namespace ptx {
namespace {

// Hints, and what holds of every use: results round to nearest, and functions are as exact as the host's.
const std::set<std::string> without_meaning = {"rn", "approx", "full", "uni", "aligned"};

const Table& table() {
  static Table complete;
  if (complete.empty())
    for (auto add : {add_arithmetic, add_access, add_tensor, add_control}) add(complete);
  return complete;
}

std::string trimmed(const std::string& s) {
  const size_t from = s.find_first_not_of(" \t\r\n");
  return from == std::string::npos ? "" : s.substr(from, s.find_last_not_of(" \t\r\n") - from + 1);
}

std::vector<std::string> split(const std::string& s, char at) {  // not within braces and brackets
  std::vector<std::string> parts(1);
  int depth = 0;
  for (char c : s) {
    depth += (c == '{' || c == '[') - (c == '}' || c == ']');
    if (c == at && !depth) parts.emplace_back();
    else parts.back() += c;
  }
  for (std::string& part : parts) part = trimmed(part);
  if (parts.back().empty()) parts.pop_back();
  return parts;
}

uint32_t rounded_up(uint32_t value, uint32_t to) { return (value + to - 1) / to * to; }

uint64_t parse_number(const std::string& s) {
  const bool pattern = s.size() > 2 && s[0] == '0' && strchr("fF", s[1]);  // of a floating-point number
  char* end = nullptr;
  const char* begin = s.c_str() + 2 * pattern;
  const uint64_t value = s[0] == '-' ? uint64_t(strtoll(begin, &end, 0)) : strtoull(begin, &end, pattern ? 16 : 0);
  if (s.empty() || *end) throw Trap("operand '" + s + "' is unknown");
  return value;
}

struct Variable {
  std::string name;
  uint32_t bytes, alignment;
};

// ".shared .align 16 .b8 name[64]", ".param .u64 .ptr .global .align 1 name"
Variable variable(const std::string& text) {
  static const std::regex form(R"(.*?(?:\.align (\d+) +)?\.[busf](\d+) (?:.* )?([\w$]+)(\[(\d*)\])?)");
  std::smatch m;
  if (!std::regex_match(text, m, form)) throw Trap("an unknown kind of variable");
  const uint32_t size = uint32_t(std::stoi(m[2])) / 8, alignment = m[1].length() ? uint32_t(std::stoi(m[1])) : size;
  return {m[3], m[4].matched ? size * uint32_t(atoi(m[5].str().c_str())) : size, std::max(size, alignment)};
}

}  // namespace

int size_of(const std::string& type) {
  const size_t digits = type.find_first_of("0123456789");
  return digits == std::string::npos ? 0 : atoi(type.c_str() + digits) / 8;
}

Module Parser::parse(const std::string& text) {
  std::string before;
  for (size_t i = 0; i < text.size(); ++i) {
    if (!text.compare(i, 2, "//")) i = std::min(text.find('\n', i), text.size() - 1);
    const char c = text[i];
    line_ += c == '\n';
    if (strchr("\n{}:;", c) && statement(trimmed(before), c)) before.clear();
    else before += c == '\n' ? ' ' : c;
  }
  if (kernels_.empty()) throw Trap("no kernel in the PTX");
  return std::move(kernels_);
}

// Carries out the statement that `end` ends; false if this is no end.
bool Parser::statement(const std::string& text, char end) try {
  const auto is_name = [](char c) { return isalnum(c) || c == '_' || c == '$'; };
  if (end == '\n') return !text.rfind(".loc", 0);
  if (!kernel_ && end == '{' && text.find(".entry") != std::string::npos) begin_kernel(text);
  else if (end == ';' && text.find(".shared ") != std::string::npos) share(text.substr(text.find(".shared ")));
  else if (!kernel_) return end != ':';
  else if (end == ':' && !std::all_of(text.begin(), text.end(), is_name)) return false;
  else if (end == ':') labels_[text] = uint32_t(kernel_->code.size());
  else if (end != ';' && !text.empty())  // braces of an operand
    return false;
  else if (end == '{') scopes_.emplace_back();
  else if (end == '}' && scopes_.size() > 2) scopes_.pop_back();
  else if (end == '}') end_kernel();
  else if (!text.rfind(".reg", 0)) declare(text);
  else if (!text.empty() && text.rfind(".pragma", 0)) instruction(text);
  return true;
} catch (const Trap& trap) {
  throw Trap("line " + std::to_string(line_) + ": " + trap.what() + ": " + text.substr(0, 160));
}

// ".visible .entry name(.param .u64 a, .param .f32 b) .maxntid 256, 1, 1"
void Parser::begin_kernel(const std::string& header) {
  static const std::regex form(R"(\.entry ([\w$]+)\((.*)\)(?:.*ntid ([\d, ]+))?)");
  std::smatch m;
  if (!std::regex_search(header, m, form)) throw Trap("an unknown kind of kernel");
  kernels_.push_back(std::make_shared<Kernel>());
  kernel_ = kernels_.back().get();
  kernel_->name = m[1];
  for (const std::string& part : split(m[2], ',')) {
    const Variable v = variable(part);
    const uint32_t at = rounded_up(kernel_->parameter_bytes, v.alignment);
    kernel_->parameters.push_back({at, v.bytes});
    symbols_[v.name] = at;
    kernel_->parameter_bytes = at + v.bytes;
  }
  if (m[3].matched) kernel_->most_threads = 1;
  for (const std::string& size : split(m[3], ',')) kernel_->most_threads *= uint32_t(std::stoi(size));
  kernel_->register_bytes = special(specials).at;
  scopes_.assign(2, {{"%globaltimer", timer}});
  for (uint32_t i = 0; i < specials; ++i) scopes_[0][special_names[i]] = special(i);
}

void Parser::end_kernel() {
  instruction("ret");
  for (const auto& [at, label] : branches_) {
    if (!labels_.count(label)) throw Trap("no label " + label);
    kernel_->code[at].target = labels_[label];
  }
  kernel_->static_shared = rounded_up(shared_bytes_, 16);
  constants_.clear(), labels_.clear(), branches_.clear();
  kernel_ = nullptr;
}

// ".shared .align 16 .b8 name[64]"; `name[]` takes what a launch gives, behind the others.
void Parser::share(const std::string& text) {
  const Variable v = variable(text);
  if (open_) throw Trap("a variable behind the shared memory whose size a launch gives");
  open_ = !v.bytes;
  shared_bytes_ = rounded_up(shared_bytes_, open_ ? 16 : v.alignment);
  symbols_[v.name] = shared_bytes_;
  shared_bytes_ += v.bytes;
}

// ".reg .b32 %r<10>" or ".reg .b32 a, b"
void Parser::declare(const std::string& text) {
  std::istringstream list(text);
  std::string type, name;
  list >> type >> type;
  const uint8_t width = type == ".pred" ? 0 : size_of(type) == 8 ? 8 : 4;
  while (std::getline(list, name, ',')) {
    const size_t many = std::min(name.find('<'), name.size());
    for (int i = 0; i < (many < name.size() ? atoi(name.c_str() + many + 1) : 1); ++i) {
      const std::string number = many < name.size() ? std::to_string(i) : "";
      scopes_.back()[trimmed(name.substr(0, many)) + number] = {Operand::registers, width, kernel_->register_bytes};
      kernel_->register_bytes += width == 8 ? 2 * slot_bytes : slot_bytes;
    }
  }
}

// "@!%p add.s32 %r1, %r2, 7"
void Parser::instruction(const std::string& text) {
  in = Instruction();
  in.line = line_;
  in.text = text;
  std::istringstream rest(text);
  std::string guard = "@1", operands, key;
  if (text[0] == '@') rest >> guard;
  in.skips = guard[1] == '!' ? all_threads : 0;
  in.guard = operand(guard.substr(in.skips ? 2 : 1), 0, false);
  in.members = constant(all_threads, 4);
  rest >> in.mnemonic;
  std::getline(rest, operands);
  arguments = split(operands, ',');
  words.clear();
  for (const std::string& word : split(in.mnemonic, '.'))
    if (!without_meaning.count(word)) words.push_back(word), key += "." + word;
  const bool moves_parts = words[0] == "mov" && text.find('{') != std::string::npos;
  auto found = table().find(moves_parts ? "mov" : key.substr(1));
  if (found == table().end()) found = table().find(words[0]);
  if (found == table().end()) throw Trap("unknown instruction " + in.mnemonic);
  used_ = 0;
  found->second(*this);
  if (used_ != arguments.size()) throw Trap("unexpected number of operands");
  kernel_->has_wgmma |= words[0] == "wgmma";
  kernel_->code.push_back(std::move(in));
}

Operand Parser::operand(const std::string& name, int width, bool written) {
  for (size_t i = scopes_.size(); i-- > 0;) {
    const auto found = scopes_[i].find(name);
    if (found == scopes_[i].end()) continue;
    if (width >= 0 && found->second.width != width)
      throw Trap("operand " + name + " has another width than the instruction");
    (written ? in.writes : in.reads).push_back(found->second.at);
    return found->second;
  }
  if (name == "_") return {};
  if (written) throw Trap("no register " + name);
  return constant(symbols_.count(name) ? symbols_[name] : parse_number(name), width);
}

Operand Parser::constant(uint64_t value, int width) {
  if (width == 0) value = value ? all_threads : 0;
  const uint32_t size = width == 8 ? 8 : 4;
  std::vector<char>& image = kernel_->constants;
  const auto [found, fresh] = constants_.insert({{value, width}, uint32_t(image.size())});
  if (fresh) image.resize(image.size() + size * warp_threads);
  for (uint32_t i = 0; fresh && i < warp_threads; ++i)  // little-endian, as the device
    memcpy(image.data() + found->second + i * size, &value, size);
  return {Operand::constants, uint8_t(width ? size : 0), found->second};
}

std::vector<Operand> Parser::vector(size_t i, int width, bool written) {
  const std::string& s = argument(i);
  std::vector<Operand> result;
  for (const std::string& name : split(s.front() == '{' ? s.substr(1, s.size() - 2) : s, ','))
    result.push_back(operand(name, width, written));
  return result;
}

// "[%rd1 + -16]"
Address Parser::address(size_t i, Space space, size_t bytes) {
  const std::string& s = argument(i);
  if (s.size() < 2 || s.front() != '[' || s.back() != ']') throw Trap("expected an address, got '" + s + "'");
  const std::vector<std::string> parts = split(s.substr(1, s.size() - 2), '+');
  return {operand(parts.at(0), -1, false), int64_t(parts.size() > 1 ? parse_number(parts[1]) : 0), space, bytes};
}

const std::string& Parser::argument(size_t i) {
  if (i >= arguments.size()) throw Trap("unexpected number of operands");
  used_ = std::max(used_, i + 1);
  return arguments[i];
}

uint64_t Parser::number(size_t i) { return parse_number(argument(i)); }

void Parser::branch_to(size_t i) { branches_.push_back({kernel_->code.size(), argument(i)}); }

}  // namespace ptx
