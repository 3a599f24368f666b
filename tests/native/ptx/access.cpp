// Instructions that read and write memory.
#include <algorithm>
#include <set>

#include "lanes.h"

namespace ptx {
namespace {

// The block of its cluster whose shared memory a warp accesses; it must have begun, and may not leave before.
Block& visited(Warp& warp, uint32_t rank) {
  if (rank >= warp.block->cluster->blocks.size()) throw Trap("rank " + std::to_string(rank) + " is not in the cluster");
  Block& block = *warp.block->cluster->blocks[rank];
  if (&block == warp.block) return block;
  if (!block.alive) throw Trap("the shared memory of a block that has left");
  if (!warp.machine->settings.checks) return block;
  if (!block.cluster->barrier.rounds && warp.clocks.of[block.first] <= warp.machine->base)
    throw Trap("the shared memory of a block that may not have started");
  block.visitors[warp.index] = warp.clock();
  return block;
}

}  // namespace

Place Machine::place(Warp& warp, Space space, uint64_t address, size_t bytes) {
  const auto refused = [&](const std::string& before, const char* after) {
    constexpr const char* names[] = {"parameter", "global", "shared", "shared"};
    return Trap(before + names[int(space)] + " address " + std::to_string(address) + after);
  };
  if (address % bytes) throw refused("misaligned ", (" for " + std::to_string(bytes) + " bytes").c_str());
  if (space == Space::global) {
    Region* region = global.find(address, bytes);
    Shadow* shadow = region && settings.checks ? region->shadow.get() : nullptr;
    return {reinterpret_cast<char*>(address), shadow, shadow ? address - region->begin : 0};
  }
  if (space == Space::param) {
    if (address + bytes > kernel.parameter_bytes) throw refused("", " out of bounds");
    return {const_cast<char*>(parameters) + address};
  }
  const uint32_t rank = uint32_t(address) >> 24, at = address & 0xffffff;
  if (rank && space == Space::shared) throw Trap("an address of the cluster in an instruction for the own block");
  Block& block = rank ? visited(warp, rank - 1) : *warp.block;
  if (at + bytes > block.shared.size()) throw refused("", " out of bounds");
  return {block.shared.data() + at, settings.checks ? &block.shadow : nullptr, at};
}

namespace {

enum class Order { weak, relaxed, acquire, release };

uint64_t value_of(const Warp& warp, const Operand& o, int lane) {
  return o.width == 8 ? warp.lanes<uint64_t>(o)[lane] : warp.lanes<uint32_t>(o)[lane];
}

void set(const Warp& warp, const Operand& o, int lane, uint64_t value) {
  if (o.width == 8) warp.lanes<uint64_t>(o)[lane] = value;
  else if (o.width == 4) warp.lanes<uint32_t>(o)[lane] = uint32_t(value);
}

uint64_t address_of(const Warp& warp, const Address& a, int lane) {
  return value_of(warp, a.base, lane) + uint64_t(a.offset);
}

// An atomic access takes over what was released where it reads: at once, or at the next fence.
void acquire(Warp& warp, const char* at, Order order) {
  const auto found = warp.machine->released.find(at);
  if (found == warp.machine->released.end()) return;
  (order == Order::acquire ? warp.clocks : warp.pending).join(found->second);
}

void release(Warp& warp, const char* at, Order order) {
  warp.spins = false;
  Clocks& to = warp.machine->released[at];
  if (order == Order::release) warp.publish(to);
  else to.join(warp.fenced);
}

// A warp that finds what it found before lets others run.
void poll(Warp& warp, uint64_t value) {
  const auto [found, fresh] = warp.polled.insert({warp.pc, value});
  if (!fresh) warp.spins = found->second == value;
  warp.yields |= warp.spins;
  found->second = value;
}

}  // namespace

Place place_of(Warp& warp, const Address& a, int lane) {
  return warp.machine->place(warp, a.space, address_of(warp, a, lane), a.bytes);
}

// In shared memory wide accesses take several passes of 128 bytes; in a pass each bank serves one word after the other.
void count(Warp& warp, const Address& a, Mask mask) {
  Counts& counts = warp.current->counts;
  counts.bytes += unsigned(__builtin_popcount(mask)) * a.bytes;
  if (!warp.machine->settings.traffic || a.space == Space::param) return;
  const bool in_sectors = a.space == Space::global;
  const int together = in_sectors || a.bytes < 8 ? 32 : a.bytes == 8 ? 16 : 8;
  for (int from = 0; from < warp_threads; from += together) {
    uint64_t units[32], *end = units;  // sectors or words; an aligned access lies in one sector
    for (int lane = from; lane < from + together; ++lane)
      for (size_t b = 0; b < (in_sectors ? 1 : a.bytes) && mask >> lane & 1; b += 4)
        *end++ = (address_of(warp, a, lane) + b) / (in_sectors ? 32 : 4);
    std::sort(units, end);
    end = std::unique(units, end);
    if (in_sectors) counts.sectors += uint64_t(end - units);
    if (in_sectors) continue;
    int used[32] = {}, most = 0;
    for (const uint64_t* word = units; word < end; ++word) most = std::max(most, ++used[*word % 32]);
    counts.wavefronts += uint64_t(most);
    counts.ideal += most > 0;
  }
}

namespace {

struct Access : Address {
  Order order = Order::weak;
  std::vector<Operand> data;
};

// "ld.acquire.gpu.global.v2.u32"; `data`, `address`: which operands these are.
Access access(Parser& s, size_t data, size_t address) {
  static const std::map<std::string, Space> spaces = {{"param", Space::param},
                                                      {"global", Space::global},
                                                      {"shared", Space::shared},
                                                      {"shared::cta", Space::shared},
                                                      {"shared::cluster", Space::cluster}};
  static const std::map<std::string, Order> orders = {
      {"relaxed", Order::relaxed}, {"acquire", Order::acquire}, {"release", Order::release}};
  static const std::set<std::string> scopes_and_hints = {"cluster", "gpu", "nc", "cg", "L1::no_allocate"};
  Access result;
  size_t count = 1, has_space = 0;
  for (size_t i = 1; i + 1 < s.words.size(); ++i) {
    const std::string& word = s.words[i];
    if (spaces.count(word)) result.space = spaces.at(word), has_space = 1;
    else if (orders.count(word)) result.order = orders.at(word);
    else if (word == "v2" || word == "v4") count = size_t(word[1] - '0');
    else if (!scopes_and_hints.count(word) && (word != "add" || s.words[0] != "red"))
      throw Trap("unknown modifier ." + word);
  }
  if (!has_space) throw Trap("an access without a space");
  static_cast<Address&>(result) = s.address(address, result.space, size_t(size_of(s.words.back())) * count);
  result.data = s.vector(data, -1, s.words[0] == "ld");
  if (result.data.size() != count) throw Trap("a vector of another length than the instruction");
  return result;
}

// Calls f with a value of a type as wide as the named one; s32 is signed, since wider registers take loads of it.
template <class F>
void with_type(const std::string& name, const F& f) {
  if (name == "s32") f(int32_t());
  else if (size_of(name) == 8) f(uint64_t());
  else if (size_of(name) == 4) f(uint32_t());
  else if (name == "u16" || name == "b16") f(uint16_t());
  else if (name == "u8") f(uint8_t());
  else throw Trap("unknown type " + name);
}

void bind_load(Parser& s) {
  with_type(s.words.back(), [&, from = access(s, 0, 1)](auto sample) {
    using T = decltype(sample);
    s.in.run = [from, atomic = from.order != Order::weak](Warp& warp, Mask mask) {
      count(warp, from, mask);
      T* places[warp_threads];
      for_threads(mask, [&](int lane) {
        const Place place = place_of(warp, from, lane);
        if (place.shadow) place.shadow->read(place.offset, from.bytes, warp, atomic ? Use::atomic : Use::plain);
        if (atomic) acquire(warp, place.at, from.order);
        places[lane] = reinterpret_cast<T*>(place.at);
      });
      for (size_t e = 0; e < from.data.size(); ++e)
        for_threads(mask, [&](int lane) { set(warp, from.data[e], lane, uint64_t(places[lane][e])); });
      if (atomic) poll(warp, uint64_t(*places[__builtin_ctz(mask)]));
    };
  });
}

// st, and red.add, which is a store of a sum
void bind_store(Parser& s) {
  with_type(s.words.back(), [&, to = access(s, 1, 0)](auto sample) {
    using T = decltype(sample);
    s.in.run = [to, atomic = to.order != Order::weak, adds = s.words[0] == "red"](Warp& warp, Mask mask) {
      count(warp, to, mask);
      warp.spins = false;
      for_threads(mask, [&](int lane) {
        const Place place = place_of(warp, to, lane);
        T data[4];
        for (size_t e = 0; e < to.data.size(); ++e) data[e] = T(value_of(warp, to.data[e], lane));
        if (adds && place.shadow) place.shadow->read(place.offset, to.bytes, warp, Use::atomic);
        if (adds) acquire(warp, place.at, to.order), data[0] += *reinterpret_cast<T*>(place.at);
        const Use use = atomic ? Use::atomic : memcmp(place.at, data, to.bytes) ? Use::plain : Use::same;
        if (place.shadow) place.shadow->write(place.offset, to.bytes, warp, use);
        if (atomic) release(warp, place.at, to.order);
        memcpy(place.at, data, to.bytes);
      });
    };
  });
}

// cp.async "[to], [from], 16, given": zeros follow the bytes that are given. It is done when it is waited for.
void bind_copy(Parser& s) {
  const size_t bytes = s.number(2);
  const Address to = s.address(0, Space::shared, bytes), from = s.address(1, Space::global, bytes);
  const Operand given = s.read(s.arguments.size() > 3 ? 3 : 2);
  s.in.run = [=](Warp& warp, Mask mask) {
    count(warp, from, mask);
    for_threads(mask, [&](int lane) {
      const size_t length = std::min<size_t>(warp.lanes<uint32_t>(given)[lane], bytes);
      const Place target = place_of(warp, to, lane), source = length ? place_of(warp, from, lane) : Place();
      if (target.shadow) target.shadow->write(target.offset, bytes, warp, Use::starts);
      if (source.shadow) source.shadow->read(source.offset, length, warp);
      warp.copies.open.push_back([=, &warp] {
        memset(target.at, 0, bytes);
        memcpy(target.at, source.at, length);
        if (target.shadow) target.shadow->write(target.offset, bytes, warp, Use::ends);
      });
    });
  };
}

// mov "{low, high}, whole" and "whole, {low, high}"
void bind_parts(Parser& s) {
  const int width = size_of(s.words.back());
  const bool joins = s.arguments.at(1)[0] == '{';
  const std::vector<Operand> parts = s.vector(joins, -1, !joins);
  const Operand whole = joins ? s.write(0, width) : s.read(1, width);
  const size_t bits = 8 * size_t(width) / parts.size();
  s.in.run = [=](Warp& warp, Mask mask) {
    for_threads(mask, [&](int lane) {
      uint64_t value = joins ? 0 : value_of(warp, whole, lane);
      for (size_t i = 0; i < parts.size(); ++i) {
        if (!joins) set(warp, parts[i], lane, value >> bits * i & ((1ull << bits) - 1));
        if (joins) value |= (value_of(warp, parts[i], lane) & ((1ull << bits) - 1)) << bits * i;
      }
      if (joins) set(warp, whole, lane, value);
    });
  };
}

}  // namespace

void add_access(Table& t) {
  t["ld"] = bind_load;
  t["st"] = t["red"] = bind_store;
  t["mov"] = bind_parts;
  t["cp.async.ca.shared.global"] = t["cp.async.cg.shared.global"] = bind_copy;
  t["cp.async.commit_group"] = action([](Warp& warp, Mask) { warp.copies.commit(); });
  t["cp.async.wait_all"] = action([](Warp& warp, Mask) { warp.copies.commit(), warp.copies.wait(0); });
  t["cp.async.wait_group"] = wait_for(&Warp::copies);
}

}  // namespace ptx
