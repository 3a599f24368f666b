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
void add_comparisons(Table& t, const std::string& type) {
  t["setp.eq." + type] = lanes<bool, T, T>([](T a, T b) { return a == b; });
  t["setp.ne." + type] = lanes<bool, T, T>([](T a, T b) { return a < b || a > b; });
  t["setp.lt." + type] = lanes<bool, T, T>([](T a, T b) { return a < b; });
  t["setp.le." + type] = lanes<bool, T, T>([](T a, T b) { return a <= b; });
  t["setp.gt." + type] = lanes<bool, T, T>([](T a, T b) { return a > b; });
  t["setp.ge." + type] = lanes<bool, T, T>([](T a, T b) { return a >= b; });
}

template <class T>
void add_integers(Table& t, const std::string& type) {
  using U = std::make_unsigned_t<T>;
  constexpr uint32_t size = 8 * sizeof(T);
  const auto one = [&](const char* name, auto f) { t[name + ("." + type)] = lanes<T, T>(f); };
  const auto two = [&](const char* name, auto f) { t[name + ("." + type)] = lanes<T, T, T>(f); };
  // Sums and products wrap around.
  two("add", [](U a, U b) { return a + b; });
  two("sub", [](U a, U b) { return a - b; });
  two("mul.lo", [](U a, U b) { return uint64_t(a) * b; });
  two("mul.hi", [](T a, T b) { return __int128(a) * b >> size; });
  t["mad.lo." + type] = lanes<T, T, T, T>([](U a, U b, U c) { return uint64_t(a) * b + c; });
  // Division by zero and its overflow give some value on the device.
  two("div", [](T a, T b) { return !b ? T(~T(0)) : std::is_signed_v<T> && b == T(-1) ? T(U(0) - U(a)) : T(a / b); });
  two("rem", [](T a, T b) { return !b ? a : std::is_signed_v<T> && b == T(-1) ? T(0) : T(a % b); });
  two("min", [](T a, T b) { return std::min(a, b); });
  two("max", [](T a, T b) { return std::max(a, b); });
  one("neg", [](U a) { return U(0) - a; });
  one("abs", [](T a) { return a < T(0) ? U(0) - U(a) : U(a); });
  two("and", [](T a, T b) { return a & b; });
  two("or", [](T a, T b) { return a | b; });
  two("xor", [](T a, T b) { return a ^ b; });
  one("not", [](T a) { return ~a; });
  one("mov", [](T a) { return a; });
  t["selp." + type] = lanes<T, T, T, bool>([](T a, T b, bool first) { return first ? a : b; });
  t["shl." + type] = lanes<T, T, uint32_t>([](U a, uint32_t by) { return by < size ? U(a << by) : U(0); });
  t["shr." + type] = lanes<T, T, uint32_t>([](T a, uint32_t by) {
    return by < size ? T(a >> by) : std::is_signed_v<T> ? T(a >> (size - 1)) : T(0);
  });
  if constexpr (sizeof(T) == 4) {
    using W = std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>;
    t["mul.wide." + type] = lanes<W, T, T>([](T a, T b) { return W(a) * W(b); });
    t["mad.wide." + type] = lanes<W, T, T, W>([](T a, T b, W c) { return uint64_t(W(a) * W(b)) + uint64_t(c); });
    t["bfe." + type] = lanes<T, T, uint32_t, uint32_t>(extracted<T>);
  }
  add_comparisons<T>(t, type);
}

void add_floats(Table& t) {
  const auto one = [&](const char* name, auto f) {
    t[name + std::string(".f32")] = lanes<float, float>(f);
    t[name + std::string(".ftz.f32")] = lanes<float, float>([f](float a) { return flushed(f(flushed(a))); });
  };
  const auto two = [&](const char* name, auto f) { t[name + std::string(".f32")] = lanes<float, float, float>(f); };
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
  add_comparisons<float>(t, "f32");
}

template <class D, class S>
Binder converted() {
  return lanes<D, S>([](S a) { return D(a); });
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
  add_integers<uint16_t>(t, "u16"), add_integers<uint16_t>(t, "b16"), add_integers<int16_t>(t, "s16");
  add_integers<uint32_t>(t, "u32"), add_integers<uint32_t>(t, "b32"), add_integers<int32_t>(t, "s32");
  add_integers<uint64_t>(t, "u64"), add_integers<uint64_t>(t, "b64"), add_integers<int64_t>(t, "s64");
  add_floats(t);
  t["cvt.u16.u32"] = converted<uint16_t, uint32_t>(), t["cvt.u32.u16"] = converted<uint32_t, uint16_t>();
  t["cvt.u32.u64"] = converted<uint32_t, uint64_t>(), t["cvt.u64.u32"] = converted<uint64_t, uint32_t>();
  t["cvt.s32.s16"] = converted<int32_t, int16_t>(), t["cvt.s64.s32"] = converted<int64_t, int32_t>();
  t["cvt.f32.s32"] = converted<float, int32_t>(), t["cvt.f32.u64"] = converted<float, uint64_t>();
  add_half<from_half, to_half>(t, "f16"), add_half<from_bfloat, to_bfloat>(t, "bf16");
  t["bfi.b32"] = lanes<uint32_t, uint32_t, uint32_t, uint32_t, uint32_t>(inserted<uint32_t>);
  t["bfi.b64"] = lanes<uint64_t, uint64_t, uint64_t, uint32_t, uint32_t>(inserted<uint64_t>);
  t["mov.f32"] = t["mov.b32"], t["selp.f32"] = t["selp.b32"], t["cvta.to.global.u64"] = t["mov.b64"];
  t["and.pred"] = lanes<bool, bool, bool>([](bool a, bool b) { return a && b; });
  t["or.pred"] = lanes<bool, bool, bool>([](bool a, bool b) { return a || b; });
  t["xor.pred"] = lanes<bool, bool, bool>([](bool a, bool b) { return a != b; });
  t["not.pred"] = lanes<bool, bool>([](bool a) { return !a; });
  t["mov.pred"] = lanes<bool, bool>([](bool a) { return a; });
  t["mapa.shared::cluster.u32"] = lanes<uint32_t, uint32_t, uint32_t>(
      [](uint32_t address, uint32_t rank) { return (address & 0xffffff) | (rank + 1) << 24; });
}

}  // namespace ptx
