// Operands as C++ values, thread by thread.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <tuple>
#include <type_traits>

#include "machine.h"

namespace ptx {

template <class To, class From>
inline To bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

inline float from_half(uint16_t pattern) { return float(bits<_Float16>(pattern)); }
inline uint16_t to_half(float value) { return bits<uint16_t>(_Float16(value)); }
inline float from_bfloat(uint16_t pattern) { return bits<float>(uint32_t(pattern) << 16); }
inline uint16_t to_bfloat(float value) {
  const uint32_t b = bits<uint32_t>(value);
  return std::isnan(value) ? 0x7fff : uint16_t((b + 0x7fff + (b >> 16 & 1)) >> 16);
}

template <class T>
constexpr int width_of = std::is_same_v<T, bool> ? 0 : std::max<int>(4, sizeof(T));

// A register over the threads. Values of less than 32 bits take the low bits of a slot.
template <class T>
struct Lanes {
  char* slots;
  T get(int lane) const {
    T value;
    if constexpr (std::is_same_v<T, bool>) value = *reinterpret_cast<const Mask*>(slots) >> lane & 1;
    else memcpy(&value, slots + lane * width_of<T>, sizeof value);
    return value;
  }
  void set(int lane, T value) const { memcpy(slots + lane * width_of<T>, &value, sizeof value); }
};

// A register of 4 or 8 bytes in one thread.
inline uint64_t value_of(const Warp& warp, const Operand& o, int lane) {
  return o.width == 8 ? warp.lanes<uint64_t>(o)[lane] : warp.lanes<uint32_t>(o)[lane];
}
inline void set(const Warp& warp, const Operand& o, int lane, uint64_t value) {
  if (o.width == 8) warp.lanes<uint64_t>(o)[lane] = value;
  else if (o.width == 4) warp.lanes<uint32_t>(o)[lane] = uint32_t(value);
}

template <class F>
inline void for_threads(Mask mask, const F& f) {
  if (mask == all_threads) {
#pragma GCC ivdep
    for (int i = 0; i < warp_threads; ++i) f(i);
  } else {
    for (; mask; mask &= mask - 1) f(__builtin_ctz(mask));
  }
}

// d = f(operands) in each thread.
template <class D, class... S, class F>
Binder lanes(F f) {
  return [f](Parser& s) {
    size_t i = 1;
    const Operand d = s.write(0, width_of<D>);
    s.in.run = [f, d, from = std::array<Operand, sizeof...(S)>{s.read(i++, width_of<S>)...}](Warp& warp, Mask mask) {
      const auto sources = std::apply([&](auto... o) { return std::tuple(Lanes<S>{warp.lanes<char>(o)}...); }, from);
      const auto value = [&](int lane) {
        return D(std::apply([&](const auto&... source) { return f(source.get(lane)...); }, sources));
      };
      const Lanes<D> to = {warp.lanes<char>(d)};
      if constexpr (std::is_same_v<D, bool>) {
        Mask result = 0;
        for (int lane = 0; lane < warp_threads; ++lane) result |= Mask(value(lane)) << lane;
        Mask& all = *warp.lanes<Mask>(d);
        all = (all & ~mask) | (result & mask);
      } else {
        for_threads(mask, [&](int lane) { to.set(lane, value(lane)); });
      }
    };
  };
}

// What has no operands; `convergent`: of the full warp.
inline Binder action(void (*run)(Warp&, Mask), bool convergent = true) {
  return [=](Parser& s) { s.in.run = run, s.in.convergent = convergent; };
}

// Waits until no more groups are under way than the operand says.
inline Binder wait_for(Pending Warp::* pending) {
  return [=](Parser& s) {
    s.in.convergent = true;
    s.in.run = [pending, left = s.number(0)](Warp& warp, Mask) { (warp.*pending).wait(left); };
  };
}

}  // namespace ptx
