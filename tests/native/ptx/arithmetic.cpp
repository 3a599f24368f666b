// Instructions that compute a value in each thread. PTX names the operation and its type: so does the table.
#include <algorithm>
#include <cfenv>
#include <limits>

#include "lanes.h"
#include "module.h"

namespace ptx {
namespace {

#define OPERATION(name, parameters, ...) \
  struct name { template <class T> T operator() parameters const { return T(__VA_ARGS__); } };
#define ONE(name, ...) OPERATION(name, (T a), __VA_ARGS__)
#define TWO(name, ...) OPERATION(name, (T a, T b), __VA_ARGS__)
#define THREE(name, ...) OPERATION(name, (T a, T b, T c), __VA_ARGS__)

ONE(Same, a)
ONE(Not, std::is_same_v<T, bool> ? !a : ~uint64_t(a))
ONE(Negative, T(0) - a)
ONE(Size, a < T(0) ? T(0) - a : a)
ONE(FloatNegative, -a)
ONE(FloatSize, std::fabs(a))
ONE(Reciprocal, T(1) / a)
ONE(Root, std::sqrt(a))
ONE(InverseRoot, T(1) / std::sqrt(a))
ONE(Exp2, std::exp2(a))
ONE(Log2, std::log2(a))
ONE(Tanh, std::tanh(a))
ONE(Ones, __builtin_popcountll(uint64_t(a)))
ONE(LeadingZeros, a ? __builtin_clzll(uint64_t(a)) - (64 - 8 * int(sizeof(T))) : 8 * int(sizeof(T)))
TWO(Plus, a + b)
TWO(Minus, a - b)
TWO(Times, a * b)
TWO(Quotient, a / b)
TWO(And, a & b)
TWO(Or, a | b)
TWO(Xor, a ^ b)
TWO(Least, a < b ? a : b)
TWO(Most, a > b ? a : b)
TWO(FloatLeast, std::isnan(a) ? b : std::isnan(b) ? a : a == b ? (std::signbit(a) ? a : b) : a < b ? a : b)
TWO(FloatMost, std::isnan(a) ? b : std::isnan(b) ? a : a == b ? (std::signbit(a) ? b : a) : a > b ? a : b)
TWO(NanLeast, std::isnan(a) ? a : std::isnan(b) ? b : FloatLeast()(a, b))
TWO(NanMost, std::isnan(a) ? a : std::isnan(b) ? b : FloatMost()(a, b))
TWO(CopySign, std::copysign(b, a))
TWO(HighProduct, __int128(a) * b >> 8 * sizeof(T))
// Division by zero and its overflow give some value on the device.
TWO(IntegerQuotient, !b ? T(~T(0)) : std::is_signed_v<T> && b == T(-1) ? T(0) - a : a / b)
TWO(Remainder, !b ? a : std::is_signed_v<T> && b == T(-1) ? T(0) : a % b)
THREE(TimesPlus, a * b + c)
THREE(Fma, std::fma(a, b, c))
THREE(DifferencePlus, c + (a > b ? a - b : b - a))
OPERATION(Left, (T a, uint32_t by), by < 8 * sizeof(T) ? a << by : 0)
OPERATION(Right, (T a, uint32_t by), by < 8 * sizeof(T) ? a >> by : std::is_signed_v<T> ? a >> (8 * sizeof(T) - 1) : 0)
OPERATION(Select, (T a, T b, bool first), first ? a : b)

struct Wide {
  template <class T>
  auto operator()(T a, T b) const {
    using Signed = std::conditional_t<sizeof(T) == 2, int32_t, int64_t>;
    using Twice = std::conditional_t<std::is_signed_v<T>, Signed, std::make_unsigned_t<Signed>>;
    return Twice(Twice(a) * Twice(b));
  }
  template <class T, class C>
  C operator()(T a, T b, C c) const { return C(uint64_t((*this)(a, b)) + uint64_t(c)); }
};

struct Extract {
  template <class T>
  T operator()(T a, uint32_t from, uint32_t length) const {
    constexpr uint32_t most = 8 * sizeof(T) - 1;
    from &= 255, length &= 255;
    if (!length) return 0;
    const uint32_t last = std::min(from + length - 1, most), have = from > last ? 0 : last - from + 1;
    const bool sign = std::is_signed_v<T> && uint64_t(a) >> last & 1;
    const uint64_t value = from > most ? 0 : uint64_t(std::make_unsigned_t<T>(a)) >> from;
    const uint64_t kept = have >= 64 ? ~0ull : (1ull << have) - 1;
    return T((value & kept) | (sign ? ~kept : 0));
  }
};

struct Insert {
  template <class T>
  T operator()(T a, T b, uint32_t from, uint32_t length) const {
    constexpr uint32_t most = 8 * sizeof(T);
    from &= 255, length = std::min(length & 255, most);
    if (from >= most || !length) return b;
    const T kept = T(T(T(~T(0)) >> (most - length)) << from);
    return T((T(a << from) & kept) | (b & ~kept));
  }
};

struct Permute {
  uint32_t operator()(uint32_t a, uint32_t b, uint32_t how) const {
    uint32_t result = 0;
    for (int i = 0; i < 4; ++i) {
      const uint32_t by = how >> 4 * i & 15, byte = uint32_t((uint64_t(b) << 32 | a) >> 8 * (by & 7)) & 255;
      result |= (by & 8 ? (byte & 128 ? 255 : 0) : byte) << 8 * i;
    }
    return result;
  }
};

struct Logic {
  uint32_t operator()(uint32_t a, uint32_t b, uint32_t c, uint32_t table) const {
    uint32_t result = 0;
    for (uint32_t i = 0; i < 8; ++i)
      if (table >> i & 1) result |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
    return result;
  }
};

template <bool left, bool wraps>
struct Funnel {
  uint32_t operator()(uint32_t a, uint32_t b, uint32_t by) const {
    by = wraps ? by & 31 : std::min(by, 32u);
    const uint64_t both = uint64_t(b) << 32 | a;
    return uint32_t(left ? both << by >> 32 : both >> by);
  }
};

float flushed(float x) { return std::fabs(x) < std::numeric_limits<float>::min() ? std::copysign(0.0f, x) : x; }
float cut(float x) { return x > 0 ? std::min(x, 1.0f) : 0.0f; }

// The same with subnormals flushed, results cut to [0, 1] or another rounding.
template <class F>
struct Careful {
  const bool flush, saturate;
  explicit Careful(const Instruction& in) : flush(in.flush), saturate(in.saturate) {
    constexpr int modes[] = {FE_TONEAREST, FE_DOWNWARD, FE_UPWARD, FE_TOWARDZERO};
    fesetround(modes[int(in.rounding)]);
  }
  ~Careful() { fesetround(FE_TONEAREST); }
  template <class... More>
  float operator()(More... more) const {
    const float x = flush ? flushed(F()(flushed(more)...)) : F()(more...);
    return saturate ? cut(x) : x;
  }
};

const std::vector<std::string> compare_names = {"eq",  "ne",  "lt",  "le",  "gt",  "ge",  "equ", "neu", "ltu",
                                                "leu", "gtu", "geu", "num", "nan", "lo",  "ls",  "hi",  "hs"};
template <int compare>
struct Compared {
  template <class T>
  bool operator()(T a, T b) const {
    const bool unordered = a != a || b != b, holds[] = {a == b, a != b && !unordered, a < b, a <= b, a > b, a >= b};
    return compare == 12 ? !unordered : compare == 13 ? unordered : holds[compare % 6] || (compare > 5 && unordered);
  }
};

template <class T>
T rounded(T x, Rounding way) {
  return way == Rounding::nearest ? std::nearbyint(x) : way == Rounding::down ? std::floor(x)
       : way == Rounding::up ? std::ceil(x) : std::trunc(x);
}

template <class D, class S>
struct Convert {
  const Instruction& in;
  explicit Convert(const Instruction& i) : in(i) {}
  D operator()(S from) const {
    if constexpr (!is_number<D> && !is_number<S>) {
      return D(from);
    } else if constexpr (!is_number<D>) {
      const double x = rounded(double(from), in.rounding);
      using Limits = std::numeric_limits<D>;
      if (std::isnan(x)) return 0;
      return x <= double(Limits::min()) ? Limits::min() : x >= std::ldexp(1.0, Limits::digits) ? Limits::max() : D(x);
    } else {
      float x = float(from);
      if (in.mode) x = rounded(x, in.rounding);
      if (in.flush) x = flushed(x);
      return D(in.saturate ? cut(x) : x);
    }
  }
};

template <class To>
struct Pack {
  uint32_t operator()(float high, float low) const { return uint32_t(To(high)) << 16 | uint32_t(To(low)); }
};

struct Entry {
  void (*run)(Warp&, const Instruction&, Mask);
  std::vector<int> widths;  // of the result, then of the operands
};
using Table = std::map<std::string, Entry>;

template <class F, class D, class... S>
Entry entry() { return {run_lanes<F, D, S...>, {width_of<D>, width_of<S>...}}; }

template <class F, class T>
Entry two() { return entry<F, T, T, T>(); }

template <class T, int... compare>
void add_compared(Table& t, const std::string& type, std::integer_sequence<int, compare...>) {
  ((t["setp." + compare_names[compare] + "." + type] = entry<Compared<compare>, bool, T, T>()), ...);
  for (size_t i = 14; i < 18; ++i)
    t["setp." + compare_names[i] + "." + type] = t["setp." + compare_names[i - 12] + "." + type];
}

template <class T>
void add_integers(Table& t, const std::string& type) {
  using U = std::make_unsigned_t<T>;
  const std::pair<const char*, Entry> entries[] = {
      {"add", two<Plus, U>()}, {"sub", two<Minus, U>()}, {"mul.lo", two<Times, U>()}, {"mul.hi", two<HighProduct, T>()},
      {"mad.lo", entry<TimesPlus, U, U, U, U>()}, {"neg", entry<Negative, U, U>()}, {"abs", entry<Size, T, T>()},
      {"div", two<IntegerQuotient, T>()}, {"rem", two<Remainder, T>()}, {"min", two<Least, T>()},
      {"max", two<Most, T>()}, {"sad", entry<DifferencePlus, T, T, T, T>()}, {"and", two<And, U>()},
      {"or", two<Or, U>()}, {"xor", two<Xor, U>()},
      {"not", entry<Not, U, U>()}, {"mov", entry<Same, U, U>()}, {"selp", entry<Select, U, U, U, bool>()},
      {"shl", entry<Left, U, U, uint32_t>()}, {"shr", entry<Right, T, T, uint32_t>()}};
  for (const auto& [name, how] : entries) t[name + ("." + type)] = how;
  if constexpr (sizeof(T) < 8) {
    using W = decltype(Wide()(T(), T()));
    t["mul.wide." + type] = entry<Wide, W, T, T>(), t["mad.wide." + type] = entry<Wide, W, T, T, W>();
  }
  if constexpr (sizeof(T) > 2) {
    t["bfe." + type] = entry<Extract, T, T, uint32_t, uint32_t>();
    t["bfi." + type] = entry<Insert, U, U, U, uint32_t, uint32_t>();
    t["popc." + type] = entry<Ones, uint32_t, U>(), t["clz." + type] = entry<LeadingZeros, uint32_t, U>();
  }
  add_compared<T>(t, type, std::make_integer_sequence<int, 6>());
}

template <class F, class... S>
void add_float(Table& t, const std::string& name) {
  t[name + ".f32"] = entry<F, float, S...>();
  t["careful " + name + ".f32"] = entry<Careful<F>, float, S...>();
}

void add_floats(Table& t) {
  add_float<FloatNegative, float>(t, "neg"), add_float<FloatSize, float>(t, "abs");
  add_float<Reciprocal, float>(t, "rcp"), add_float<Root, float>(t, "sqrt");
  add_float<InverseRoot, float>(t, "rsqrt"), add_float<Exp2, float>(t, "ex2");
  add_float<Log2, float>(t, "lg2"), add_float<Tanh, float>(t, "tanh"), add_float<Plus, float, float>(t, "add");
  add_float<Minus, float, float>(t, "sub"), add_float<Times, float, float>(t, "mul");
  add_float<Quotient, float, float>(t, "div"), add_float<FloatLeast, float, float>(t, "min");
  add_float<FloatMost, float, float>(t, "max"), add_float<NanLeast, float, float>(t, "min.NaN");
  add_float<NanMost, float, float>(t, "max.NaN"), add_float<CopySign, float, float>(t, "copysign");
  add_float<Fma, float, float, float>(t, "fma");
  add_compared<float>(t, "f32", std::make_integer_sequence<int, 14>());
}

template <class D, class... S>
void add_conversions_from(Table& t, const std::string& to) {
  static const char* names[] = {"u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64", "f16", "bf16", "f32"};
  int i = 0;
  ((t["cvt." + to + "." + names[i++]] = entry<Convert<D, S>, D, S>()), ...);
}

template <class D>
void add_conversions(Table& t, const char* to) {
  add_conversions_from<D, uint8_t, int8_t, uint16_t, int16_t, uint32_t, int32_t, uint64_t, int64_t, Half, BFloat,
                       float>(t, to);
}

Table table() {
  Table t;
  add_integers<uint16_t>(t, "u16"), add_integers<uint16_t>(t, "b16"), add_integers<int16_t>(t, "s16");
  add_integers<uint32_t>(t, "u32"), add_integers<uint32_t>(t, "b32"), add_integers<int32_t>(t, "s32");
  add_integers<uint64_t>(t, "u64"), add_integers<uint64_t>(t, "b64"), add_integers<int64_t>(t, "s64");
  add_floats(t);
  t["mov.f32"] = t["mov.b32"], t["selp.f32"] = t["selp.b32"];
  t["and.pred"] = two<And, bool>(), t["or.pred"] = two<Or, bool>(), t["xor.pred"] = two<Xor, bool>();
  t["not.pred"] = entry<Not, bool, bool>(), t["mov.pred"] = entry<Same, bool, bool>();
  using Word = uint32_t;
  t["prmt.b32"] = entry<Permute, Word, Word, Word, Word>();
  t["lop3.b32"] = entry<Logic, Word, Word, Word, Word, Word>();
  t["shf.l.wrap.b32"] = entry<Funnel<true, true>, Word, Word, Word, Word>();
  t["shf.r.wrap.b32"] = entry<Funnel<false, true>, Word, Word, Word, Word>();
  t["shf.l.clamp.b32"] = entry<Funnel<true, false>, Word, Word, Word, Word>();
  t["shf.r.clamp.b32"] = entry<Funnel<false, false>, Word, Word, Word, Word>();
  add_conversions<uint8_t>(t, "u8"), add_conversions<int8_t>(t, "s8"), add_conversions<uint16_t>(t, "u16");
  add_conversions<int16_t>(t, "s16"), add_conversions<uint32_t>(t, "u32"), add_conversions<int32_t>(t, "s32");
  add_conversions<uint64_t>(t, "u64"), add_conversions<int64_t>(t, "s64"), add_conversions<Half>(t, "f16");
  add_conversions<BFloat>(t, "bf16"), add_conversions<float>(t, "f32");
  t["cvt.tf32.f32"] = entry<Convert<TFloat, float>, TFloat, float>();
  t["cvt.f16x2.f32"] = entry<Pack<Half>, Word, float, float>();
  t["cvt.bf16x2.f32"] = entry<Pack<BFloat>, Word, float, float>();
  return t;
}

void take_rounding(Statement& s) {
  const bool converts = s.opcode == "cvt";
  if (converts && s.types[0] == Type::tf32 && s.take("rna")) return;
  const int way = s.take_one({"rn", "rm", "rp", "rz", "rni", "rmi", "rpi", "rzi"}, 0);
  s.in.rounding = Rounding(way % 4);
  s.in.mode = way >= 4;
  if (converts && way % 4 && way < 4) throw Trap("a conversion that does not round to nearest");
}

std::string key_of(Statement& s) {
  std::string key = s.opcode;
  const auto part = [&](const std::vector<std::string>& words) {
    const int i = s.take_one(words, -1);
    if (i >= 0) key += "." + words[size_t(i)];
  };
  if (s.opcode == "setp") part(compare_names);
  if (s.opcode == "mul" || s.opcode == "mad") part({"lo", "hi", "wide"});
  if (s.opcode == "shf") part({"l", "r"}), part({"wrap", "clamp"});
  if (s.opcode == "min" || s.opcode == "max") part({"NaN"});
  if (s.opcode == "cvt" && s.types.size() == 2) key += std::string(".") + name_of(s.types[0]);
  return key + "." + name_of(s.in.type);
}

}  // namespace

bool bind_arithmetic(Statement& s) {
  static const Table entries = table();
  if (s.types.empty()) return false;
  const auto starts = [&](size_t i, const char* with) { return s.arguments.at(i).rfind(with, 0) == 0; };
  if (s.opcode == "mov" && (starts(0, "{") || starts(1, "{") || starts(1, "%clock") || starts(1, "%globaltimer")))
    return false;
  std::string key = key_of(s);
  if (s.in.type == Type::f32 || s.opcode == "cvt") {
    take_rounding(s);
    s.in.flush = s.take("ftz");
    s.in.saturate = s.types[0] == Type::f32 && s.take("sat");
    s.ignore({"approx", "full"});
    const bool careful = s.in.flush || s.in.saturate || s.in.rounding != Rounding::nearest;
    if (careful && s.opcode != "cvt" && s.opcode != "setp") key = "careful " + key;
  }
  const auto found = entries.find(key);
  if (found == entries.end()) return false;
  const Entry& how = found->second;
  s.expect(how.widths.size(), how.widths.size());
  s.in.run = how.run;
  Operand* to[] = {&s.in.a, &s.in.b, &s.in.c, &s.in.e};
  s.in.d = s.write(0, how.widths[0]);
  for (size_t i = 1; i < how.widths.size(); ++i) *to[i - 1] = s.read(i, how.widths[i]);
  return true;
}

}  // namespace ptx
