// Instructions that read and write memory.
#include <algorithm>

#include "lanes.h"
#include "module.h"

namespace ptx {
namespace {

struct Place {
  char* at;
  Shadow* shadow = nullptr;
  size_t offset = 0;  // in the shadow
};

uint64_t value_of(const Warp& warp, const Operand& o, int lane) {
  return o.width == 8 ? warp.lanes<uint64_t>(o)[lane] : warp.lanes<uint32_t>(o)[lane];
}

void set(const Warp& warp, const Operand& o, int lane, uint64_t value) {
  if (o.width == 8)
    warp.lanes<uint64_t>(o)[lane] = value;
  else if (o.width == 4)
    warp.lanes<uint32_t>(o)[lane] = uint32_t(value);
}

Place global_place(Warp& warp, uint64_t address, int bytes) {
  Region* region;
  char* at = warp.machine->global_memory(address, bytes, &region);
  if (!region || !region->shadow || !warp.machine->settings.checks) return {at};
  return {at, region->shadow.get(), size_t(address - region->begin)};
}

Place place_of(Warp& warp, const Instruction& in, const Operand& o, int64_t offset, int lane, int bytes) {
  const uint64_t address = value_of(warp, o, lane) + uint64_t(offset);
  if (in.space == Space::global) return global_place(warp, address, bytes);
  if (in.space == Space::param) {
    if (address + uint64_t(bytes) > warp.machine->kernel.parameter_bytes) throw Trap("an address past the parameters");
    return {const_cast<char*>(warp.machine->parameters) + address};
  }
  Block* block;
  char* at = warp.machine->shared(warp, in, uint32_t(address), bytes, &block);
  if (!warp.machine->settings.checks) return {at};
  return {at, &block->shadow, size_t(at - block->shared.data())};
}

// 32-byte sectors that one request touches; an aligned access lies in one.
void count_sectors(Warp& warp, const Operand& o, int64_t offset, Mask mask) {
  uint64_t sectors[warp_threads];
  int count = 0;
  for (; mask; mask &= mask - 1) sectors[count++] = (value_of(warp, o, __builtin_ctz(mask)) + uint64_t(offset)) / 32;
  std::sort(sectors, sectors + count);
  warp.machine->counts(warp).sectors += uint64_t(std::unique(sectors, sectors + count) - sectors);
}

// Wide accesses take several passes of 128 bytes; in a pass each bank serves one word.
void count_wavefronts(Warp& warp, const Operand& o, int64_t offset, Mask mask, int bytes) {
  const int together = bytes >= 16 ? 8 : bytes == 8 ? 16 : 32;
  Counts& counts = warp.machine->counts(warp);
  for (int from = 0; from < warp_threads; from += together) {
    uint64_t words[32][32];
    int used[32] = {}, most = 0;
    for (int lane = from; lane < from + together; ++lane) {
      for (int b = 0; b < std::max(bytes, 4) && mask >> lane & 1; b += 4) {
        const uint64_t word = (value_of(warp, o, lane) + uint64_t(offset + b)) / 4;
        uint64_t* bank = words[word % 32];
        int& n = used[word % 32];
        if (std::find(bank, bank + n, word) == bank + n) bank[n++] = word;
        most = std::max(most, n);
      }
    }
    counts.wavefronts += uint64_t(most);
    counts.ideal += most > 0;
  }
}

void count(Warp& warp, Space space, const Operand& o, int64_t offset, Mask mask, int bytes) {
  warp.machine->counts(warp).bytes += unsigned(__builtin_popcount(mask)) * unsigned(bytes);
  if (!warp.machine->settings.traffic) return;
  if (space == Space::global) count_sectors(warp, o, offset, mask);
  if (space == Space::shared || space == Space::cluster) count_wavefronts(warp, o, offset, mask, bytes);
}

uint64_t extended(uint64_t value, Type type) {
  return type == Type::s8 ? uint64_t(int8_t(value)) : type == Type::s16 ? uint64_t(int16_t(value))
       : type == Type::s32 ? uint64_t(int32_t(value)) : value;
}

template <int size>
void load(Warp& warp, const Instruction& in, Mask mask) {
  const int bytes = size * in.count;
  const bool atomic = in.order != Order::weak;
  count(warp, in.space, in.a, in.offset, mask, bytes);
  uint64_t seen = 0;
  char* from[warp_threads];
  for_threads(mask, [&](int lane) {
    const Place place = place_of(warp, in, in.a, in.offset, lane, bytes);
    from[lane] = place.at;
    if (place.shadow) place.shadow->read(place.offset, bytes, warp, atomic);
    if (!atomic) return;
    warp.machine->acquire(warp, uintptr_t(place.at), in.order);
    memcpy(&seen, place.at, size);
  });
  for (size_t e = 0; e < in.list.size(); ++e) {
    const Operand& to = in.list[e];
    if (size == 4 && to.width == 4) {
      uint32_t* slots = warp.lanes<uint32_t>(to);
      for_threads(mask, [&](int lane) { memcpy(slots + lane, from[lane] + 4 * e, 4); });
    } else {
      for_threads(mask, [&](int lane) {
        uint64_t value = 0;
        memcpy(&value, from[lane] + e * size, size);
        set(warp, to, lane, extended(value, in.type));
      });
    }
  }
  if (atomic) warp.machine->poll(warp, seen);
}

template <int size>
void store(Warp& warp, const Instruction& in, Mask mask) {
  const int bytes = size * in.count;
  const bool atomic = in.order != Order::weak;
  count(warp, in.space, in.a, in.offset, mask, bytes);
  warp.spins = false;
  for_threads(mask, [&](int lane) {
    const Place place = place_of(warp, in, in.a, in.offset, lane, bytes);
    char data[32];
    for (size_t e = 0; e < in.list.size(); ++e) {
      const uint64_t value = value_of(warp, in.list[e], lane);
      memcpy(data + e * size, &value, size);
    }
    if (place.shadow) place.shadow->write(place.offset, bytes, warp, atomic, !memcmp(place.at, data, size_t(bytes)));
    if (atomic) warp.machine->release(warp, uintptr_t(place.at), in.order);
    memcpy(place.at, data, size_t(bytes));
  });
}

const std::vector<std::string> atomics = {"add", "exch", "max", "min", "or", "and", "cas"};

template <class T>
void atomic(Warp& warp, const Instruction& in, Mask mask) {
  count(warp, in.space, in.a, in.offset, mask, int(sizeof(T)));
  for (; mask; mask &= mask - 1) {
    const int lane = __builtin_ctz(mask);
    const Place place = place_of(warp, in, in.a, in.offset, lane, int(sizeof(T)));
    if (place.shadow) place.shadow->read(place.offset, int(sizeof(T)), warp, true);
    warp.machine->acquire(warp, uintptr_t(place.at), in.order);
    T old;
    memcpy(&old, place.at, sizeof old);
    const T b = Lanes<T>(warp, in.b).get(lane), otherwise = in.c.bank ? Lanes<T>(warp, in.c).get(lane) : T(0);
    const T swapped = old == b ? otherwise : old;
    const T results[] = {T(old + b), b, std::max(old, b), std::min(old, b), T(old | b), T(old & b), swapped};
    memcpy(place.at, &results[in.mode], sizeof old);
    warp.machine->release(warp, uintptr_t(place.at), in.order);
    if (in.d.bank) Lanes<T>(warp, in.d).set(lane, old);
  }
}

// The copy is done when it is waited for.
void start_copy(Warp& warp, const Instruction& in, Mask mask) {
  const int bytes = in.count;
  count(warp, Space::global, in.b, in.offset2, mask, bytes);
  for_threads(mask, [&](int lane) {
    const uint32_t given = in.c.bank ? std::min(warp.lanes<uint32_t>(in.c)[lane], uint32_t(bytes)) : uint32_t(bytes);
    const Place target = place_of(warp, in, in.a, in.offset, lane, bytes);
    const uint64_t source = value_of(warp, in.b, lane) + uint64_t(in.offset2);
    if (target.shadow) target.shadow->begin_copy(target.offset, bytes, warp);
    const Place place = given ? global_place(warp, source, bytes) : Place{};
    if (place.shadow) place.shadow->read(place.offset, int(given), warp);
    warp.copies.push_back({uint32_t(target.at - warp.block->shared.data()), source, uint32_t(bytes), given});
  });
}

void commit_copies(Warp& warp, const Instruction&, Mask) {
  warp.copy_groups.push_back(std::move(warp.copies));
  warp.copies.clear();
}

void wait_for_copies(Warp& warp, const Instruction& in, Mask mask) {
  if (in.mode) commit_copies(warp, in, mask);
  for (; warp.copy_groups.size() > size_t(in.count); warp.copy_groups.pop_front()) {
    for (const Copy& copy : warp.copy_groups.front()) {
      char* to = warp.block->shared.data() + copy.to;
      memset(to, 0, copy.bytes);
      memcpy(to, reinterpret_cast<const char*>(copy.from), copy.given);
      if (warp.machine->settings.checks) warp.block->shadow.end_copy(copy.to, int(copy.bytes), warp);
    }
  }
}

void map_address(Warp& warp, const Instruction& in, Mask mask) {
  for_threads(mask, [&](int lane) {
    const uint32_t rank = warp.lanes<uint32_t>(in.b)[lane];
    if (rank >= warp.block->cluster->blocks.size())
      throw Trap("rank " + std::to_string(rank) + " is not in the cluster");
    set(warp, in.d, lane, (value_of(warp, in.a, lane) & 0xffffff) | (rank + 1) << 24);
  });
}

void join_parts(Warp& warp, const Instruction& in, Mask mask) {
  for_threads(mask, [&](int lane) {
    uint64_t value = 0;
    for (size_t i = in.list.size(); i-- > 0;)
      value = value << in.count | (value_of(warp, in.list[i], lane) & ((1ull << in.count) - 1));
    set(warp, in.d, lane, value);
  });
}

void split_parts(Warp& warp, const Instruction& in, Mask mask) {
  for_threads(mask, [&](int lane) {
    uint64_t value = value_of(warp, in.a, lane);
    for (const Operand& to : in.list) set(warp, to, lane, value & ((1ull << in.count) - 1)), value >>= in.count;
  });
}

void same_address(Warp& warp, const Instruction& in, Mask mask) {
  for_threads(mask, [&](int lane) { set(warp, in.d, lane, value_of(warp, in.a, lane)); });
}

void timer(Warp& warp, const Instruction& in, Mask mask) {
  for_threads(mask, [&](int lane) { set(warp, in.d, lane, warp.machine->nanoseconds()); });
}

// ".relaxed", ".acquire" ... and what makes no difference here: scopes and cache hints. A generic address is a global
// one: that is what the compilers leave generic.
void take_space_and_order(Statement& s, Order otherwise) {
  constexpr Order orders[] = {Order::relaxed, Order::relaxed,         Order::acquire,
                              Order::release, Order::acquire_release, Order::weak};
  constexpr Space spaces[] = {Space::global, Space::shared, Space::shared, Space::cluster, Space::param};
  s.in.space = spaces[s.take_one({"global", "shared", "shared::cta", "shared::cluster", "param"}, 0)];
  const int order = s.take_one({"volatile", "relaxed", "acquire", "release", "acq_rel", "weak"}, -1);
  s.in.order = order < 0 ? otherwise : orders[order];
  s.ignore({"cta", "cluster", "gpu", "sys", "nc", "ca", "cg", "cs", "lu", "cv", "wb", "wt", "L1::no_allocate",
            "L1::evict_last", "L1::evict_first", "L2::64B", "L2::128B", "L2::256B"});
}

void bind_load_or_store(Statement& s) {
  const bool loads = s.opcode == "ld";
  take_space_and_order(s, Order::weak);
  s.in.count = 1 << s.take_one({"v1", "v2", "v4", "v8"}, 0);
  s.expect(2, 2);
  s.in.a = s.address(loads ? 1 : 0, &s.in.offset);
  const int size = size_of(s.in.type);
  s.in.list = s.vector(loads ? 0 : 1, size == 8 ? 8 : -1, loads);
  if (int(s.in.list.size()) != s.in.count || !size) throw Trap("a vector of another length than the instruction");
  using Run = decltype(s.in.run);
  constexpr Run all[2][4] = {{load<1>, load<2>, load<4>, load<8>}, {store<1>, store<2>, store<4>, store<8>}};
  s.in.run = all[!loads][__builtin_ctz(unsigned(size))];
}

void bind_atomic(Statement& s) {
  const bool result = s.opcode == "atom";
  take_space_and_order(s, Order::relaxed);
  const int mode = s.take_one(atomics, -1), width = size_of(s.in.type), more = mode == 6;
  if (mode < 0 || width < 4 || s.in.type == Type::f32) throw Trap("an atomic operation that is not modelled");
  s.in.mode = uint8_t(mode);
  s.expect(size_t(2 + result + more), size_t(2 + result + more));
  if (result) s.in.d = s.write(0, width);
  s.in.a = s.address(result, &s.in.offset);
  s.in.b = s.read(1 + result, width);
  if (more) s.in.c = s.read(2 + result, width);
  const bool is_signed = s.in.type == Type::s32;
  s.in.run = width == 8 ? atomic<uint64_t> : is_signed ? atomic<int32_t> : atomic<uint32_t>;
}

void bind_copy(Statement& s) {
  if (!s.take("async")) throw Trap("a copy that is not modelled");
  s.in.convergent = true;
  if (s.take("commit_group")) {
    s.in.run = commit_copies;
  } else if (s.take("wait_group") || s.take("wait_all")) {
    s.in.mode = s.arguments.empty();
    s.in.count = s.in.mode ? 0 : int(s.number(0));
    s.in.run = wait_for_copies;
  } else {
    s.expect(3, 4);
    s.ignore({"global"});
    take_space_and_order(s, Order::weak);
    s.in.a = s.address(0, &s.in.offset);
    s.in.b = s.address(1, &s.in.offset2);
    s.in.count = int(s.number(2));
    if (s.arguments.size() == 4) s.in.c = s.read(3, 4);
    s.in.convergent = false;
    s.in.run = start_copy;
  }
}

void bind_move(Statement& s) {
  s.expect(2, 2);
  const int width = size_of(s.in.type);
  if (s.arguments[0][0] == '{') {
    s.in.list = s.vector(0, -1, true);
    s.in.a = s.read(1, std::max(4, width));
    s.in.run = split_parts;
  } else {
    s.in.d = s.write(0, std::max(4, width));
    if (s.arguments[1][0] == '{') s.in.list = s.vector(1, -1, false);
    s.in.run = s.in.list.empty() ? timer : join_parts;
  }
  if (!s.in.list.empty()) s.in.count = 8 * width / int(s.in.list.size());
}

}  // namespace

bool bind_memory(Statement& s) {
  const std::string& o = s.opcode;
  if (o == "ld" || o == "st") bind_load_or_store(s);
  else if (o == "atom" || o == "red") bind_atomic(s);
  else if (o == "cp") bind_copy(s);
  else if (o == "mov") bind_move(s);
  else if (o != "cvta" && o != "mapa") return false;
  if (s.in.run) return true;
  const int width = size_of(s.in.type);
  s.in.d = s.write(0, width), s.in.a = s.read(1, width);
  if (o == "mapa") s.in.b = s.read(2, 4);
  s.ignore(o == "mapa" ? std::vector<std::string>{"shared::cluster"} : std::vector<std::string>{"to", "global"});
  s.in.run = o == "mapa" ? map_address : same_address;
  return true;
}

}  // namespace ptx
