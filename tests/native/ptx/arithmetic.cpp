// Instructions that compute a value in each thread. PTX names the operation and its type: so does the table.
#include <algorithm>
#include <cfenv>
#include <cmath>
#include <limits>

#include "lanes.h"
#include "module.h"

namespace ptx {
namespace {

struct Entry {
  void (*run)(Warp&, const Instruction&, Mask);
  std::vector<int> widths;  // of the result, then of the operands
};
using Table = std::map<std::string, Entry>;

template <class F, class D, class... S>
Entry entry() {
  return {run_lanes<F, D, S...>, {width_of<D>, width_of<S>...}};
}

#define ONE(name, ...) \
  struct name { template <class T> T operator()(T a) const { return T(__VA_ARGS__); } };
#define TWO(name, ...) \
  struct name { template <class T> T operator()(T a, T b) const { return T(__VA_ARGS__); } };
#define THREE(name, ...) \
  struct name { template <class T> T operator()(T a, T b, T c) const { return T(__VA_ARGS__); } };

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
THREE(TimesPlus, a * b + c)
THREE(Fma, std::fma(a, b, c))
THREE(DifferencePlus, c + (a > b ? a - b : b - a))

// Division by zero and its overflow give some value on the device.
TWO(IntegerQuotient, !b ? T(~T(0)) : std::is_signed_v<T> && b == T(-1) ? T(0) - a : a / b)
TWO(Remainder, !b ? a : std::is_signed_v<T> && b == T(-1) ? T(0) : a % b)

struct Wide {
  template <class T>
  auto operator()(T a, T b) const {
    using Twice = std::conditional_t<sizeof(T) == 2, std::conditional_t<std::is_signed_v<T>, int32_t, uint32_t>,
                                     std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>>;
    return Twice(a) * Twice(b);
  }
  template <class T, class C>
  C operator()(T a, T b, C c) const {
    return C(uint64_t((*this)(a, b)) + uint64_t(c));
  }
};

struct Left {
  template <class T>
  T operator()(T a, uint32_t by) const {
    return by < 8 * sizeof(T) ? T(a << by) : T(0);
  }
};
struct Right {
  template <class T>
  T operator()(T a, uint32_t by) const {
    return T(a >> (by < 8 * sizeof(T) ? by : 8 * sizeof(T) - 1)) & (std::is_signed_v<T> || by < 8 * sizeof(T) ? T(~T(0)) : T(0));
  }
};
struct Select {
  template <class T>
  T operator()(T a, T b, bool first) const {
    return first ? a : b;
  }
};
struct Extract {
  template <class T>
  T operator()(T a, uint32_t from, uint32_t length) const {
    constexpr uint32_t most = 8 * sizeof(T) - 1;
    from &= 255, length &= 255;
    if (!length) return 0;
    const uint32_t last = std::min(from + length - 1, most);
    const bool sign = std::is_signed_v<T> && uint64_t(a) >> last & 1;
    const uint64_t value = from > most ? 0 : uint64_t(std::make_unsigned_t<T>(a)) >> from;
    const uint32_t have = from > last ? 0 : last - from + 1;
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
    const T kept = T(T(~T(0)) >> (most - length)) << from;
    return T(T(a << from) & kept) | T(b & ~kept);
  }
};
struct Permute {
  uint32_t operator()(uint32_t a, uint32_t b, uint32_t how) const {
    const uint64_t both = uint64_t(b) << 32 | a;
    uint32_t result = 0;
    for (int i = 0; i < 4; ++i) {
      const uint32_t by = how >> 4 * i & 15;
      const uint32_t byte = uint32_t(both >> 8 * (by & 7)) & 255;
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
    return left ? uint32_t(both << by >> 32) : uint32_t(both >> by);
  }
};

// The same with subnormals flushed, results cut to [0, 1] or another rounding.
template <class F>
struct Careful {
  bool flush, saturate;
  int before = fegetround();
  explicit Careful(const Instruction& in) : flush(in.flush), saturate(in.saturate) {
    constexpr int modes[] = {FE_TONEAREST, FE_DOWNWARD, FE_UPWARD, FE_TOWARDZERO};
    fesetround(modes[int(in.rounding)]);
  }
  ~Careful() { fesetround(before); }
  template <class T>
  T flushed(T x) const {
    return flush && std::fabs(x) < std::numeric_limits<T>::min() ? std::copysign(T(0), x) : x;
  }
  template <class T, class... More>
  T operator()(T a, More... more) const {
    const T x = flushed(F()(flushed(a), flushed(more)...));
    return !saturate ? x : x > 0 ? std::min(x, T(1)) : T(0);
  }
};

template <int compare>
struct Compared {
  template <class T>
  bool operator()(T a, T b) const {
    const bool unordered = a != a || b != b;
    const bool holds[] = {a == b, a != b && !unordered, a < b, a <= b, a > b, a >= b};
    return compare == 12 ? !unordered : compare == 13 ? unordered : compare < 6 ? holds[compare] : holds[compare - 6] || unordered;
  }
};
const std::vector<std::string> compare_names = {"eq",  "ne",  "lt",  "le",  "gt",  "ge",  "equ", "neu", "ltu",
                                                "leu", "gtu", "geu", "num", "nan", "lo",  "ls",  "hi",  "hs"};

template <class T>
T rounded(T x, Rounding rounding) {
  switch (rounding) {
    case Rounding::nearest: return std::nearbyint(x);
    case Rounding::down: return std::floor(x);
    case Rounding::up: return std::ceil(x);
    default: return std::trunc(x);
  }
}

template <class D, class S>
struct Convert {
  const Instruction& in;
  explicit Convert(const Instruction& i) : in(i) {}
  D operator()(S from) const {
    if constexpr (!is_number<D> && !is_number<S>) {
      return D(from);
    } else if constexpr (!is_number<D>) {
      const double x = rounded(double(from), in.rounding), least = double(std::numeric_limits<D>::min());
      if (std::isnan(x)) return 0;
      return x <= least ? std::numeric_limits<D>::min() : x >= std::ldexp(1.0, std::numeric_limits<D>::digits) ? std::numeric_limits<D>::max() : D(x);
    } else {
      using Wide = std::conditional_t<std::is_same_v<D, double>, double, float>;
      Wide x = Wide(from);
      if (in.mode) x = rounded(x, in.rounding);
      if (in.flush && std::fabs(x) < Wide(std::numeric_limits<float>::min())) x = std::copysign(Wide(0), x);
      if (in.saturate) x = x > 0 ? std::min(x, Wide(1)) : Wide(0);
      return D(x);
    }
  }
};

template <class To>
struct Pack {
  uint32_t operator()(float high, float low) const { return uint32_t(To(high)) << 16 | uint32_t(To(low)); }
};

template <class Make>
void for_integers(const Make& make) {
  make(uint16_t(), {"u16", "b16"}), make(int16_t(), {"s16"});
  make(uint32_t(), {"u32", "b32"}), make(int32_t(), {"s32"});
  make(uint64_t(), {"u64", "b64"}), make(int64_t(), {"s64"});
}

using Names = std::initializer_list<const char*>;

void add_integers(Table& t) {
  for_integers([&](auto zero, Names types) {
    using T = decltype(zero);
    using U = std::make_unsigned_t<T>;
    for (const std::string type : types) {
      const auto two = [&](const char* name, Entry e) { t[name + ("." + type)] = std::move(e); };
      two("add", entry<Plus, U, U, U>()), two("sub", entry<Minus, U, U, U>()), two("mul.lo", entry<Times, U, U, U>());
      two("mad.lo", entry<TimesPlus, U, U, U, U>()), two("neg", entry<Negative, U, U>()), two("abs", entry<Size, T, T>());
      two("div", entry<IntegerQuotient, T, T, T>()), two("rem", entry<Remainder, T, T, T>());
      two("min", entry<Least, T, T, T>()), two("max", entry<Most, T, T, T>()), two("sad", entry<DifferencePlus, T, T, T, T>());
      two("mul.hi", entry<HighProduct, T, T, T>());
      two("and", entry<And, U, U, U>()), two("or", entry<Or, U, U, U>()), two("xor", entry<Xor, U, U, U>());
      two("not", entry<Not, U, U>()), two("mov", entry<Same, U, U>()), two("selp", entry<Select, U, U, U, bool>());
      two("shl", entry<Left, U, U, uint32_t>()), two("shr", entry<Right, T, T, uint32_t>());
      if constexpr (sizeof(T) < 8) {
        using W = decltype(Wide()(T(), T()));
        two("mul.wide", entry<Wide, W, T, T>()), two("mad.wide", entry<Wide, W, T, T, W>());
      }
      if constexpr (sizeof(T) > 2) {
        two("bfe", entry<Extract, T, T, uint32_t, uint32_t>());
        two("popc", entry<Ones, uint32_t, U>()), two("clz", entry<LeadingZeros, uint32_t, U>());
      }
    }
  });
  t["bfi.b32"] = entry<Insert, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t>();
  t["bfi.b64"] = entry<Insert, uint64_t, uint64_t, uint64_t, uint32_t, uint32_t>();
  t["prmt.b32"] = entry<Permute, uint32_t, uint32_t, uint32_t, uint32_t>();
  t["lop3.b32"] = entry<Logic, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t>();
  t["shf.l.wrap.b32"] = entry<Funnel<true, true>, uint32_t, uint32_t, uint32_t, uint32_t>();
  t["shf.r.wrap.b32"] = entry<Funnel<false, true>, uint32_t, uint32_t, uint32_t, uint32_t>();
  t["shf.l.clamp.b32"] = entry<Funnel<true, false>, uint32_t, uint32_t, uint32_t, uint32_t>();
  t["shf.r.clamp.b32"] = entry<Funnel<false, false>, uint32_t, uint32_t, uint32_t, uint32_t>();
}

template <class T>
void add_floats(Table& t, const std::string& type) {
  const auto add = [&](const std::string& name, Entry plain, Entry careful) {
    t[name + "." + type] = std::move(plain);
    t["careful " + name + "." + type] = std::move(careful);
  };
  const auto one = [&](const char* name, auto f) {
    using F = decltype(f);
    add(name, entry<F, T, T>(), entry<Careful<F>, T, T>());
  };
  const auto two = [&](const char* name, auto f) {
    using F = decltype(f);
    add(name, entry<F, T, T, T>(), entry<Careful<F>, T, T, T>());
  };
  one("neg", FloatNegative()), one("abs", FloatSize()), one("rcp", Reciprocal()), one("sqrt", Root());
  one("rsqrt", InverseRoot()), one("ex2", Exp2()), one("lg2", Log2()), one("tanh", Tanh());
  two("add", Plus()), two("sub", Minus()), two("mul", Times()), two("div", Quotient()), two("min", FloatLeast());
  two("max", FloatMost()), two("min.NaN", NanLeast()), two("max.NaN", NanMost()), two("copysign", CopySign());
  add("fma", entry<Fma, T, T, T, T>(), entry<Careful<Fma>, T, T, T, T>());
  using Pattern = typename Lanes<T>::Slot;
  t["mov." + type] = entry<Same, Pattern, Pattern>();
  t["selp." + type] = entry<Select, Pattern, Pattern, Pattern, bool>();
}

template <class T, int... compare>
void add_compared(Table& t, const std::string& type, std::integer_sequence<int, compare...>) {
  ((t["setp." + compare_names[compare] + "." + type] = entry<Compared<compare>, bool, T, T>()), ...);
  const char* unsigned_names[] = {"lo", "ls", "hi", "hs"};
  for (int i = 0; i < 4; ++i) t[std::string("setp.") + unsigned_names[i] + "." + type] = t["setp." + compare_names[size_t(i) + 2] + "." + type];
}

template <class D, class... S>
void add_conversions_from(Table& t, const std::string& to) {
  static const char* names[] = {"u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64", "f16", "bf16", "f32", "f64"};
  int i = 0;
  ((t["cvt." + to + "." + names[i++]] = entry<Convert<D, S>, D, S>()), ...);
}

template <class D>
void add_conversions(Table& t, const char* to) {
  add_conversions_from<D, uint8_t, int8_t, uint16_t, int16_t, uint32_t, int32_t, uint64_t, int64_t, Half, BFloat, float, double>(t, to);
}

Table table() {
  Table t;
  add_integers(t);
  add_floats<float>(t, "f32");
  add_floats<double>(t, "f64");
  constexpr auto integers = std::make_integer_sequence<int, 6>();
  for_integers([&](auto zero, Names types) {
    for (const char* type : types) add_compared<decltype(zero)>(t, type, integers);
  });
  add_compared<float>(t, "f32", std::make_integer_sequence<int, 14>());
  add_compared<double>(t, "f64", std::make_integer_sequence<int, 14>());
  t["and.pred"] = entry<And, bool, bool, bool>();
  t["or.pred"] = entry<Or, bool, bool, bool>();
  t["xor.pred"] = entry<Xor, bool, bool, bool>();
  t["not.pred"] = entry<Not, bool, bool>();
  t["mov.pred"] = entry<Same, bool, bool>();
  add_conversions<uint8_t>(t, "u8"), add_conversions<int8_t>(t, "s8");
  add_conversions<uint16_t>(t, "u16"), add_conversions<int16_t>(t, "s16");
  add_conversions<uint32_t>(t, "u32"), add_conversions<int32_t>(t, "s32");
  add_conversions<uint64_t>(t, "u64"), add_conversions<int64_t>(t, "s64");
  add_conversions<Half>(t, "f16"), add_conversions<BFloat>(t, "bf16");
  add_conversions<float>(t, "f32"), add_conversions<double>(t, "f64");
  t["cvt.tf32.f32"] = entry<Convert<TFloat, float>, TFloat, float>();
  t["cvt.f16x2.f32"] = entry<Pack<Half>, uint32_t, float, float>();
  t["cvt.bf16x2.f32"] = entry<Pack<BFloat>, uint32_t, float, float>();
  return t;
}

bool is_float(Type type) { return type == Type::f32 || type == Type::f64; }

// Whether nothing but rounding to nearest can be done: no careful loop, and no conversion to 16 bits otherwise.
void take_rounding(Statement& s) {
  const bool to_tf32 = s.opcode == "cvt" && s.types[0] == Type::tf32;
  if (to_tf32 && s.take("rna")) return;
  const int way = s.take_one({"rn", "rm", "rp", "rz", "rni", "rmi", "rpi", "rzi"}, 0);
  s.in.rounding = Rounding(way % 4);
  s.in.mode = way >= 4;
  if (s.opcode == "cvt" && (way >= 4 ? is_float(s.types[0]) && !is_float(s.types[1]) : way != 0))
    throw Trap("a conversion with a rounding that is not to nearest");
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
  if (s.opcode == "mov" && (starts(0, "{") || starts(1, "{") || starts(1, "%clock") || starts(1, "%globaltimer"))) return false;
  std::string key = key_of(s);
  const bool real = is_float(s.in.type);
  if (real || s.opcode == "cvt") {
    take_rounding(s);
    s.in.flush = s.take("ftz");
    s.in.saturate = real && s.take("sat");
    s.ignore({"approx", "full"});
    const bool careful = s.in.flush || s.in.saturate || s.in.rounding != Rounding::nearest;
    if (careful && s.opcode != "cvt" && s.opcode != "setp") key = "careful " + key;
  }
  const auto found = entries.find(key);
  if (found == entries.end()) return false;
  const Entry& entry = found->second;
  s.expect(entry.widths.size(), entry.widths.size());
  s.in.run = entry.run;
  Operand* to[] = {&s.in.a, &s.in.b, &s.in.c, &s.in.e};
  s.in.d = s.write(0, entry.widths[0]);
  for (size_t i = 1; i < entry.widths.size(); ++i) *to[i - 1] = s.read(i, entry.widths[i]);
  return true;
}

}  // namespace ptx
