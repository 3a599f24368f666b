#include "module.h"

#include <algorithm>
#include <cstring>
#include <sstream>

namespace ptx {
namespace {

constexpr const char* type_names[] = {"",    "pred", "b8",  "u8",   "s8",    "b16",    "u16", "s16", "f16", "bf16",
                                      "b32", "u32", "s32", "f32", "tf32", "f16x2", "bf16x2", "b64", "u64", "s64",
                                      "f64"};

std::string trimmed(const std::string& s) {
  const size_t from = s.find_first_not_of(" \t\r\n");
  return from == std::string::npos ? "" : s.substr(from, s.find_last_not_of(" \t\r\n") - from + 1);
}

std::vector<std::string> split(const std::string& s, char at) {
  std::vector<std::string> parts;
  std::string part;
  int depth = 0;
  for (char c : s) {
    depth += (c == '{' || c == '[') - (c == '}' || c == ']');
    part += c;
    if (c != at || depth) continue;
    part.pop_back();
    parts.push_back(trimmed(part));
    part.clear();
  }
  if (!trimmed(part).empty()) parts.push_back(trimmed(part));
  return parts;
}

std::string without_comments(const std::string& text) {
  std::istringstream lines(text);
  std::string result;
  for (std::string line; std::getline(lines, line);) result += line.substr(0, line.find("//")) + '\n';
  return result;
}

uint32_t rounded_up(uint32_t value, uint32_t to) { return (value + to - 1) / to * to; }

uint64_t parse_number(const std::string& s) {
  if (s == "true" || s == "false") return s == "true";
  const bool pattern = s.size() > 2 && s[0] == '0' && strchr("fFdD", s[1]);  // of a floating-point number
  char* end = nullptr;
  const char* begin = s.c_str() + 2 * pattern;
  const uint64_t value = s[0] == '-' ? uint64_t(strtoll(begin, &end, 0)) : strtoull(begin, &end, pattern ? 16 : 0);
  if (s.empty() || (*end && strcmp(end, "U"))) throw Trap("operand '" + s + "' is unknown");
  return value;
}

// ".shared .align 16 .b8 name[64]", ".param .u64 .ptr .global .align 1 name"
struct Variable {
  std::string name;
  uint32_t bytes, alignment = 1;
};

Variable variable(const std::string& text) {
  Variable result;
  std::istringstream words(text);
  std::string word;
  uint32_t size = 1;
  while (words >> word) {
    if (word == ".ptr") words >> word >> word >> word;  // what it points to
    else if (word == ".align") words >> result.alignment;
    else if (word[0] != '.') result.name += word;
    else if (const Type type = type_named(word.substr(1)); type != Type::none) size = uint32_t(size_of(type));
  }
  const size_t bracket = result.name.find('[');
  result.bytes = size * (bracket == std::string::npos ? 1 : uint32_t(atoi(result.name.c_str() + bracket + 1)));
  result.name = result.name.substr(0, bracket);
  result.alignment = std::max(result.alignment, size);
  return result;
}

}  // namespace

int size_of(Type type) {
  if (type == Type::none || type == Type::pred) return 0;
  return type <= Type::s8 ? 1 : type <= Type::bf16 ? 2 : type <= Type::bf16x2 ? 4 : 8;
}

const char* name_of(Type type) { return type_names[int(type)]; }

Type type_named(const std::string& name) {
  for (int i = 1; i < int(sizeof(type_names) / sizeof(*type_names)); ++i)
    if (name == type_names[i]) return Type(i);
  return Type::none;
}

// The statements of one kernel.
class Decoder {
 public:
  Decoder(Kernel& kernel, std::map<std::string, uint64_t> symbols) : kernel_(kernel), symbols_(std::move(symbols)) {
    scopes_.emplace_back();
    kernel_.register_bytes = specials * slot_bytes;
    kernel_.predicates = 2;  // false, true
    for (int i = 0; i < specials; ++i)
      scopes_[0][special_names[i]] = place(Operand::registers, 4, uint32_t(i) * slot_bytes);
  }

  void body(const std::string& text, int line) {
    std::string statement;
    for (const char c : text) {
      line += c == '\n';
      statement += c == '\n' ? ' ' : c;
      if (!strchr("\n{}:;", c)) continue;
      const std::string before = trimmed(statement.substr(0, statement.size() - 1));
      if (c == '\n' && before.rfind(".loc", 0) != 0) continue;
      if (c == ':' && !is_label(before)) continue;
      if ((c == '{' || c == '}') && !before.empty()) continue;
      if (c == '{') scopes_.emplace_back();
      if (c == '}') scopes_.pop_back();
      if (c == ':') labels_[before] = uint32_t(kernel_.code.size());
      if (c == ';') decode(before, line);
      statement.clear();
    }
    decode("ret", line);
    for (const auto& [at, label] : branches_) {
      if (!labels_.count(label)) throw Trap("line " + std::to_string(kernel_.code[at].line) + ": no label " + label);
      kernel_.code[at].target = labels_[label];
    }
    kernel_.counts.resize(kernel_.code.size());
  }

  Operand find(const std::string& name, int width, bool written) {
    for (size_t i = scopes_.size(); i-- > 0;) {
      const auto found = scopes_[i].find(name);
      if (found == scopes_[i].end()) continue;
      if (width >= 0 && found->second.width != width)
        throw Trap("operand " + name + " has another width than the instruction");
      return found->second;
    }
    if (name == "_") return {};
    if (written) throw Trap("no register " + name);
    return constant(symbols_.count(name) ? symbols_[name] : parse_number(name), width);
  }

  void branch_to(const std::string& label) { branches_.push_back({kernel_.code.size(), label}); }

 private:
  static Operand place(Operand::Bank bank, int width, uint32_t at) { return {bank, uint8_t(width), at}; }

  static bool is_label(const std::string& s) {
    return !s.empty() && std::all_of(s.begin(), s.end(), [](char c) { return isalnum(c) || c == '_' || c == '$'; });
  }

  Operand constant(uint64_t value, int width) {
    if (width == 0) return place(Operand::predicates, 0, value != 0);
    if (width < 0) width = 4;
    const auto [found, fresh] = constants_.insert({{value, width}, uint32_t(kernel_.constants.size())});
    if (fresh) {
      kernel_.constants.resize(kernel_.constants.size() + size_t(width) * warp_threads);
      for (int i = 0; i < warp_threads; ++i)  // little-endian, as the device
        memcpy(kernel_.constants.data() + found->second + i * width, &value, size_t(width));
    }
    return place(Operand::constants, width, found->second);
  }

  // ".reg .b32 %r<10>" or ".reg .b32 a, b"
  void declare(const std::string& text) {
    std::istringstream words(text);
    std::string word, kind, rest;
    words >> word >> kind;
    std::getline(words, rest);
    const Type type = type_named(kind.substr(1));
    if (type == Type::none) throw Trap("unknown type " + kind);
    for (const std::string& part : split(rest, ',')) {
      const size_t many = part.find('<');
      const int count = many == std::string::npos ? 1 : atoi(part.c_str() + many + 1);
      for (int i = 0; i < count; ++i)
        scopes_.back()[part.substr(0, many) + (many == std::string::npos ? "" : std::to_string(i))] = fresh(type);
    }
  }

  Operand fresh(Type type) {
    if (type == Type::pred) return place(Operand::predicates, 0, kernel_.predicates++);
    const int width = std::max(4, size_of(type));
    const uint32_t at = kernel_.register_bytes;
    kernel_.register_bytes += uint32_t(width) * warp_threads;
    return place(Operand::registers, width, at);
  }

  void decode(const std::string& text, int line) try {
    const auto starts = [&](const char* with) { return text.rfind(with, 0) == 0; };
    if (text.empty() || starts(".shared") || starts(".pragma")) return;  // shared memory is laid out already
    if (text[0] == '.' && !starts(".reg")) throw Trap("unknown directive");
    text[0] == '.' ? declare(text) : instruction(text, line);
  } catch (const Trap& trap) {
    throw Trap("line " + std::to_string(line) + ": " + trap.what() + ": " + text.substr(0, 160));
  }

  void instruction(const std::string& text, int line) {
    Statement s;
    s.decoder = this;
    s.text = text;
    s.in.line = line;
    std::string rest = text;
    if (rest[0] == '@') {
      const size_t end = rest.find_first_of(" \t");
      s.in.guarded = true;
      s.in.guard_negated = rest[1] == '!';
      s.in.guard = s.operand(rest.substr(1 + s.in.guard_negated, end - 1 - s.in.guard_negated), 0, false).at;
      rest = trimmed(rest.substr(end));
    }
    const size_t end = std::min(rest.find_first_of(" \t"), rest.size());
    const std::vector<std::string> words = split(rest.substr(0, end), '.');
    s.opcode = words.at(0);
    for (size_t i = 1; i < words.size(); ++i) {
      const Type type = type_named(words[i]);
      type == Type::none ? s.modifiers.push_back(words[i]) : s.types.push_back(type);
    }
    s.arguments = split(rest.substr(end), ',');
    if (!s.types.empty()) s.in.type = s.in.source = s.types.back();
    if (!bind_arithmetic(s) && !bind_memory(s) && !bind_tensor(s) && !bind_control(s))
      throw Trap("unknown instruction " + rest.substr(0, end));
    if (!s.modifiers.empty()) throw Trap("unknown modifier ." + s.modifiers[0]);
    kernel_.has_wgmma |= s.opcode == "wgmma";
    kernel_.mnemonics.push_back(rest.substr(0, end));
    kernel_.texts.push_back(text);
    kernel_.code.push_back(std::move(s.in));
  }

  Kernel& kernel_;
  std::map<std::string, uint64_t> symbols_;
  std::vector<std::map<std::string, Operand>> scopes_;
  std::map<std::pair<uint64_t, int>, uint32_t> constants_;
  std::map<std::string, uint32_t> labels_;
  std::vector<std::pair<size_t, std::string>> branches_;
};

bool Statement::take(const std::string& word) {
  const auto found = std::find(modifiers.begin(), modifiers.end(), word);
  const bool there = found != modifiers.end();
  if (there) modifiers.erase(found);
  return there;
}

int Statement::take_one(const std::vector<std::string>& words, int otherwise) {
  for (size_t i = 0; i < words.size(); ++i)
    if (take(words[i])) return int(i);
  return otherwise;
}

void Statement::expect(size_t least, size_t most) const {
  if (arguments.size() < least || arguments.size() > most) throw Trap("unexpected number of operands");
}

Operand Statement::operand(const std::string& name, int width, bool written) {
  const Operand o = decoder->find(name, width, written);
  if (o.bank == Operand::registers) (written ? in.writes : in.reads).push_back(o.at);
  return o;
}

Operand Statement::address(size_t i, int64_t* offset) {
  const std::string& s = argument(i);
  if (s.size() < 2 || s.front() != '[' || s.back() != ']') throw Trap("expected an address, got '" + s + "'");
  const size_t plus = s.find('+');
  *offset = plus == std::string::npos ? 0 : int64_t(parse_number(trimmed(s.substr(plus + 1, s.size() - plus - 2))));
  const std::string base = trimmed(s.substr(1, std::min(plus, s.size() - 1) - 1));
  return operand(base, -1, false);
}

std::vector<Operand> Statement::vector(size_t i, int width, bool written) {
  const std::string& s = argument(i);
  std::vector<Operand> result;
  for (const std::string& name : split(s.front() == '{' ? s.substr(1, s.size() - 2) : s, ','))
    result.push_back(operand(name, width, written));
  return result;
}

const std::string& Statement::argument(size_t i) const {
  expect(i + 1, ~size_t(0));
  return arguments[i];
}

uint64_t Statement::number(size_t i) const { return parse_number(argument(i)); }

void branch_to(Statement& s) { s.decoder->branch_to(s.arguments.at(0)); }

namespace {

// Shared variables: those with a size first, then the one whose size a launch gives.
uint32_t shared_symbols(const std::string& text, std::map<std::string, uint64_t>* symbols) {
  uint32_t end = 0;
  std::vector<std::string> open;
  for (size_t at = 0; (at = text.find(".shared .align", at)) != std::string::npos; ++at) {
    const Variable v = variable(text.substr(at, text.find(';', at) - at));
    if (!v.bytes) open.push_back(v.name);
    (*symbols)[v.name] = end = rounded_up(end, v.alignment);
    end += v.bytes;
  }
  end = rounded_up(end, 16);
  for (const std::string& name : open) (*symbols)[name] = end;
  return end;
}

void parameters(const std::string& text, Kernel* kernel, std::map<std::string, uint64_t>* symbols) {
  for (const std::string& part : split(text, ',')) {
    const Variable v = variable(part);
    kernel->parameter_bytes = rounded_up(kernel->parameter_bytes, v.alignment);
    kernel->parameters.push_back({kernel->parameter_bytes, v.bytes});
    (*symbols)[v.name] = kernel->parameter_bytes;
    kernel->parameter_bytes += v.bytes;
  }
}

uint32_t threads_of(const std::string& text) {  // " 16, 2, 1"
  uint32_t result = 1;
  const std::string sizes = text.substr(0, text.find_first_of("\n.{"));
  for (const std::string& size : split(sizes, ',')) result *= uint32_t(std::stoi(size));
  return result;
}

size_t end_of_body(const std::string& text, size_t at) {
  for (int depth = 0; at < text.size(); ++at) {
    depth += (text[at] == '{') - (text[at] == '}');
    if (!depth) break;
  }
  return at;
}

}  // namespace

Module parse(const std::string& source) {
  std::string text = without_comments(source);
  text = text.substr(0, text.find("\n\t.section"));
  const std::string head = text.substr(0, text.find(".entry"));
  Module kernels;
  for (size_t at = 0, end; (at = text.find(".entry", at)) != std::string::npos; at = end) {
    const size_t open = text.find('(', at), close = text.find(')', open), begin = text.find('{', close);
    end = end_of_body(text, begin);
    auto kernel = std::make_shared<Kernel>();
    kernel->name = trimmed(text.substr(at + 6, open - at - 6));
    for (const char* limit : {".maxntid", ".reqntid"})
      if (const size_t at = text.find(limit, close); at < begin) kernel->most_threads = threads_of(text.substr(at + 8));
    const std::string body = text.substr(begin + 1, end - begin - 1);
    std::map<std::string, uint64_t> symbols;
    kernel->static_shared = shared_symbols(head + body, &symbols);
    parameters(text.substr(open + 1, close - open - 1), kernel.get(), &symbols);
    Decoder(*kernel, symbols).body(body, int(std::count(text.begin(), text.begin() + long(begin), '\n')) + 1);
    kernels.push_back(kernel);
  }
  if (kernels.empty()) throw Trap("no kernel in the PTX");
  return kernels;
}

}  // namespace ptx
