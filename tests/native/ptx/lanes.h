// One operation over the threads of a warp: reads its operands as C++ values, calls a functor, writes the result.
#pragma once

#include <cmath>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>

#include "machine.h"

namespace ptx {

template <class T>
constexpr int width_of = std::is_same_v<T, bool> ? 0 : sizeof(T) == 8 ? 8 : 4;

template <class To, class From>
inline To bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

// The 16-bit formats and tf32, which is fp32 cut to 10 bits of mantissa.
struct Half {
  uint16_t pattern;
  explicit Half(uint32_t slot) : pattern(uint16_t(slot)) {}
  explicit Half(float value) : pattern(bits<uint16_t>(_Float16(value))) {}
  explicit operator uint32_t() const { return pattern; }
  operator float() const { return float(bits<_Float16>(pattern)); }
};
struct BFloat {
  uint16_t pattern;
  explicit BFloat(uint32_t slot) : pattern(uint16_t(slot)) {}
  explicit BFloat(float value) {
    const uint32_t b = bits<uint32_t>(value);
    pattern = std::isnan(value) ? 0x7fff : uint16_t((b + 0x7fff + (b >> 16 & 1)) >> 16);
  }
  explicit operator uint32_t() const { return pattern; }
  operator float() const { return bits<float>(uint32_t(pattern) << 16); }
};
struct TFloat {
  uint32_t pattern;
  explicit TFloat(uint32_t slot) : pattern(slot) {}
  explicit TFloat(float value) : pattern((bits<uint32_t>(value) + (std::isfinite(value) ? 0x1000 : 0)) & ~0x1fffu) {}
  explicit operator uint32_t() const { return pattern; }
  operator float() const { return bits<float>(pattern & ~0x1fffu); }
};
template <class T>
constexpr bool is_number = std::is_floating_point_v<T> || std::is_class_v<T>;

// Values of less than 32 bits lie in slots of 32, extended by their sign.
template <class T>
struct Lanes {
  using Slot = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
  Slot* slots;
  Lanes(const Warp& warp, const Operand& o) : slots(warp.lanes<Slot>(o)) {}
  T get(int i) const {
    if constexpr (std::is_floating_point_v<T>)
      return bits<T>(slots[i]);
    else
      return T(slots[i]);
  }
  void set(int i, T value) const {
    if constexpr (std::is_floating_point_v<T>)
      slots[i] = bits<Slot>(value);
    else
      slots[i] = Slot(value);
  }
};

template <>
struct Lanes<bool> {
  Mask mask;
  Lanes(const Warp& warp, const Operand& o) : mask(warp.predicates[o.at]) {}
  bool get(int i) const { return mask >> i & 1; }
};

template <class F>
inline void for_threads(Mask mask, const F& f) {
  if (mask == all_threads) {
#pragma GCC ivdep
    for (int i = 0; i < warp_threads; ++i) f(i);
  } else {
    for (; mask; mask &= mask - 1) f(__builtin_ctz(mask));
  }
}

template <class F, class D, class... S, size_t... I>
inline void apply(Warp& warp, const Instruction& in, Mask mask, const F& f, std::index_sequence<I...>) {
  const Operand* from[] = {&in.a, &in.b, &in.c, &in.e};
  const std::tuple<Lanes<S>...> sources(Lanes<S>(warp, *from[I])...);
  if constexpr (std::is_same_v<D, bool>) {
    Mask result = 0;
    for (int i = 0; i < warp_threads; ++i) result |= Mask(bool(f(std::get<I>(sources).get(i)...))) << i;
    Mask& to = warp.predicates[in.d.at];
    to = (to & ~mask) | (result & mask);
  } else {
    const Lanes<D> to(warp, in.d);
    for_threads(mask, [&](int i) { to.set(i, D(f(std::get<I>(sources).get(i)...))); });
  }
}

template <class F, class D, class... S>
void run_lanes(Warp& warp, const Instruction& in, Mask mask) {
  if constexpr (std::is_constructible_v<F, const Instruction&>)
    apply<F, D, S...>(warp, in, mask, F(in), std::index_sequence_for<S...>());
  else
    apply<F, D, S...>(warp, in, mask, F(), std::index_sequence_for<S...>());
}

}  // namespace ptx
