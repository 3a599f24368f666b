// Instructions that compute a value in each thread.
#include <algorithm>
#include <limits>

#include "lanes.h"

namespace ptx {
namespace {

// `length` bits from `from` on; those beyond the last bit are that of the sign.
template <class T>
T extracted(T a, uint32_t from, uint32_t length) {
  using Wide = std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>;
  const uint32_t cut = 64 - std::min(length & 255, 64u);
  return cut == 64 ? T(0) : T(Wide(uint64_t(Wide(a) >> std::min(from & 255, 63u)) << cut) >> cut);
}

// b with `length` bits of a from `from` on.
template <class T>
T inserted(T a, T b, uint32_t from, uint32_t length) {
  constexpr uint32_t size = 8 * sizeof(T);
  from &= 255, length = std::min(length & 255, size);
  const T field = from < size && length ? T(~T(0)) >> (size - length) << from : 0;
  return field ? (a << from & field) | (b & ~field) : b;
}

float flushed(float x) { return std::fabs(x) < std::numeric_limits<float>::min() ? std::copysign(0.0f, x) : x; }

template <class T>
void add_choices(Table& t, const std::string& type) {
  t["setp.eq." + type] = lanes<bool, T, T>([](T a, T b) { return a == b; });
  t["setp.ne." + type] = lanes<bool, T, T>([](T a, T b) { return a < b || a > b; });
  t["setp.lt." + type] = lanes<bool, T, T>([](T a, T b) { return a < b; });
  t["setp.le." + type] = lanes<bool, T, T>([](T a, T b) { return a <= b; });
  t["setp.gt." + type] = lanes<bool, T, T>([](T a, T b) { return a > b; });
  t["setp.ge." + type] = lanes<bool, T, T>([](T a, T b) { return a >= b; });
  t["selp." + type] = lanes<T, T, T, bool>([](T a, T b, bool first) { return first ? a : b; });
  t["mov." + type] = lanes<T, T>([](T a) { return a; });
}

template <class T>
void add_integers(Table& t, const std::string& type) {
  using U = std::make_unsigned_t<T>;
  constexpr uint32_t size = 8 * sizeof(T);
  const auto one = [&](const char* name, auto f) { t[name + ("." + type)] = lanes<T, T>(f); };
  const auto two = [&](const char* name, auto f) { t[name + ("." + type)] = lanes<T, T, T>(f); };
  add_choices<T>(t, type);
  // Sums and products wrap around.
  two("add", [](U a, U b) { return a + b; });
  two("sub", [](U a, U b) { return a - b; });
  two("mul.lo", [](U a, U b) { return a * b; });
  t["mad.lo." + type] = lanes<T, T, T, T>([](U a, U b, U c) { return a * b + c; });
  // Division by zero and its overflow give some value on the device.
  two("div", [](T a, T b) { return !b ? T(~T(0)) : std::is_signed_v<T> && b == T(-1) ? T(U(0) - U(a)) : T(a / b); });
  two("rem", [](T a, T b) { return !b ? a : std::is_signed_v<T> && b == T(-1) ? T(0) : T(a % b); });
  two("min", [](T a, T b) { return std::min(a, b); });
  two("max", [](T a, T b) { return std::max(a, b); });
  one("neg", [](U a) { return U(0) - a; });
  two("and", [](T a, T b) { return a & b; });
  two("or", [](T a, T b) { return a | b; });
  two("xor", [](T a, T b) { return a ^ b; });
  one("not", [](T a) { return ~a; });
  t["shl." + type] = lanes<T, T, uint32_t>([](U a, uint32_t by) { return by < size ? a << by : U(0); });
  t["shr." + type] = lanes<T, T, uint32_t>([](T a, uint32_t by) {
    return by < size ? T(a >> by) : std::is_signed_v<T> ? T(a >> (size - 1)) : T(0);
  });
  if constexpr (sizeof(T) == 4) {
    using W = std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>;
    t["mul.wide." + type] = lanes<W, T, T>([](T a, T b) { return W(a) * W(b); });
    t["mad.wide." + type] = lanes<W, T, T, W>([](T a, T b, W c) { return uint64_t(W(a) * W(b)) + uint64_t(c); });
    t["bfe." + type] = lanes<T, T, uint32_t, uint32_t>(extracted<T>);
  }
}

void add_floats(Table& t) {
  const auto one = [&](const char* name, auto f) {
    t[name + std::string(".f32")] = lanes<float, float>(f);
    t[name + std::string(".ftz.f32")] = lanes<float, float>([f](float a) { return flushed(f(flushed(a))); });
  };
  const auto two = [&](const char* name, auto f) { t[name + std::string(".f32")] = lanes<float, float, float>(f); };
  add_choices<float>(t, "f32");
  one("neg", [](float a) { return -a; });
  one("abs", [](float a) { return std::fabs(a); });
  one("rcp", [](float a) { return 1 / a; });
  one("ex2", [](float a) { return std::exp2(a); });
  two("add", [](float a, float b) { return a + b; });
  two("sub", [](float a, float b) { return a - b; });
  two("mul", [](float a, float b) { return a * b; });
  two("div", [](float a, float b) { return a / b; });
  two("max.NaN", [](float a, float b) { return a != a || (a == b ? std::signbit(b) : a > b) ? a : b; });
  t["fma.f32"] = lanes<float, float, float, float>([](float a, float b, float c) { return std::fma(a, b, c); });
}

template <float from(uint16_t), uint16_t to(float)>
void add_half(Table& t, const std::string& type) {
  t["cvt.f32." + type] = lanes<float, uint16_t>([](uint16_t a) { return from(a); });
  t["cvt." + type + ".f32"] = lanes<uint16_t, float>([](float a) { return to(a); });
  t["cvt." + type + "x2.f32"] =
      lanes<uint32_t, float, float>([](float high, float low) { return uint32_t(to(high)) << 16 | to(low); });
}

}  // namespace

void add_arithmetic(Table& t) {
  for (const char* type : {"u32", "b32"}) add_integers<uint32_t>(t, type);
  for (const char* type : {"u64", "b64"}) add_integers<uint64_t>(t, type);
  for (const char* type : {"u16", "b16"}) add_choices<uint16_t>(t, type);
  add_integers<int32_t>(t, "s32"), add_integers<int64_t>(t, "s64"), add_choices<int16_t>(t, "s16");
  add_floats(t);
  add_half<from_half, to_half>(t, "f16"), add_half<from_bfloat, to_bfloat>(t, "bf16");
  t["cvt.u32.u16"] = lanes<uint32_t, uint16_t>([](uint16_t a) { return a; });
  t["cvt.u32.u64"] = lanes<uint32_t, uint64_t>([](uint64_t a) { return a; });
  t["cvt.u64.u32"] = lanes<uint64_t, uint32_t>([](uint32_t a) { return a; });
  t["cvt.s64.s32"] = lanes<int64_t, int32_t>([](int32_t a) { return a; });
  t["bfi.b32"] = lanes<uint32_t, uint32_t, uint32_t, uint32_t, uint32_t>(inserted<uint32_t>);
  t["bfi.b64"] = lanes<uint64_t, uint64_t, uint64_t, uint32_t, uint32_t>(inserted<uint64_t>);
  t["cvta.to.global.u64"] = t["mov.b64"];
  t["and.pred"] = lanes<bool, bool, bool>([](bool a, bool b) { return a && b; });
  t["or.pred"] = lanes<bool, bool, bool>([](bool a, bool b) { return a || b; });
  t["xor.pred"] = lanes<bool, bool, bool>([](bool a, bool b) { return a != b; });
  t["not.pred"] = lanes<bool, bool>([](bool a) { return !a; });
  t["mov.pred"] = lanes<bool, bool>([](bool a) { return a; });
  t["mapa.shared::cluster.u32"] = lanes<uint32_t, uint32_t, uint32_t>(
      [](uint32_t address, uint32_t rank) { return (address & 0xffffff) | (rank + 1) << 24; });
}

}  // namespace ptx
