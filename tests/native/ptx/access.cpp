// Instructions that read and write memory, and those by which the threads of a warp exchange values.
#include <algorithm>

#include "lanes.h"
#include "module.h"

namespace ptx {
namespace {

// Generic addresses beside those of global memory, which are the host's.
constexpr uint64_t window = 1ull << 56, shared_window = 1, param_window = 2, local_window = 3;

struct Place {
  char* at;
  Shadow* shadow = nullptr;
  size_t offset = 0;  // in the shadow
};

uint64_t address_of(const Warp& warp, const Operand& o, int lane) {
  return o.width == 8 ? warp.lanes<uint64_t>(o)[lane] : warp.lanes<uint32_t>(o)[lane];
}

Space space_of(Space space, uint64_t* address) {
  if (space != Space::generic || *address < window) return space == Space::generic ? Space::global : space;
  const uint64_t which = *address / window;
  *address %= window;
  return which == shared_window ? Space::cluster : which == param_window ? Space::param : Space::local;
}

Place global_place(Warp& warp, uint64_t address, int bytes) {
  Region* region;
  Place place = {warp.machine->global_memory(warp, address, bytes, &region)};
  if (region && region->shadow) {
    place.shadow = region->shadow.get();
    place.offset = size_t(address - region->begin);
  }
  return place;
}

Place shared_place(Warp& warp, const Instruction& in, uint64_t address, int bytes) {
  Block* block;
  if (address > ~0u) throw Trap("shared address above 32 bits");
  Place place = {warp.machine->shared(warp, in, uint32_t(address), bytes, &block)};
  if (warp.machine->settings.checks) {
    place.shadow = &block->shadow;
    place.offset = size_t(place.at - block->shared.data());
  }
  return place;
}

Place place_of(Warp& warp, const Instruction& in, const Operand& o, int64_t offset, int lane, int bytes) {
  uint64_t address = address_of(warp, o, lane) + uint64_t(offset);
  if (o.width == 4) address = uint32_t(address);
  switch (space_of(in.space, &address)) {
    case Space::global: return global_place(warp, address, bytes);
    case Space::param:
      if (address + uint64_t(bytes) > warp.machine->kernel.parameter_bytes) throw Trap("a read past the parameters");
      return {const_cast<char*>(warp.machine->parameters) + address};
    case Space::local: {
      const uint64_t size = warp.machine->kernel.local_bytes;
      if (address + uint64_t(bytes) > size) throw Trap("local address out of bounds");
      return {warp.local.data() + size * uint64_t(lane) + address};
    }
    default: return shared_place(warp, in, address, bytes);
  }
}

// 32-byte sectors that one request touches.
void count_sectors(Warp& warp, const Instruction& in, const Operand& o, int64_t offset, Mask mask, int bytes) {
  uint64_t sectors[2 * warp_threads];
  int count = 0;
  for (; mask; mask &= mask - 1) {
    uint64_t address = address_of(warp, o, __builtin_ctz(mask)) + uint64_t(offset);
    if (space_of(in.space, &address) == Space::global) sectors[count++] = address / 32;
  }
  (void)bytes;  // an aligned access lies in one sector
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
      if (!(mask >> lane & 1)) continue;
      for (int b = 0; b < std::max(bytes, 4); b += 4) {
        const uint64_t word = (address_of(warp, o, lane) + uint64_t(offset) + uint64_t(b)) / 4;
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

void count(Warp& warp, const Instruction& in, const Operand& o, int64_t offset, Mask mask, int bytes) {
  warp.machine->counts(warp).bytes += unsigned(__builtin_popcount(mask)) * unsigned(bytes);
  if (!warp.machine->settings.traffic) return;
  if (in.space == Space::global || in.space == Space::generic) count_sectors(warp, in, o, offset, mask, bytes);
  if (in.space == Space::shared || in.space == Space::cluster) count_wavefronts(warp, o, offset, mask, bytes);
}

uint64_t widened(uint64_t value, Type type) {
  switch (type) {
    case Type::s8: return uint64_t(int64_t(int8_t(value)));
    case Type::s16: return uint64_t(int64_t(int16_t(value)));
    case Type::s32: return uint64_t(int64_t(int32_t(value)));
    default: return value;
  }
}

void set(Warp& warp, const Operand& o, int lane, uint64_t value) {
  if (o.width == 8)
    warp.lanes<uint64_t>(o)[lane] = value;
  else if (o.width == 4)
    warp.lanes<uint32_t>(o)[lane] = uint32_t(value);
}

template <int size>
void load(Warp& warp, const Instruction& in, Mask mask) {
  const int bytes = size * in.count;
  const bool atomic = in.order != Order::weak;
  count(warp, in, in.a, in.offset, mask, bytes);
  Machine& machine = *warp.machine;
  uint64_t seen = 0;
  char* from[warp_threads];
  for_threads(mask, [&](int lane) {
    const Place place = place_of(warp, in, in.a, in.offset, lane, bytes);
    from[lane] = place.at;
    if (place.shadow) place.shadow->read(place.offset, bytes, warp, atomic);
    if (!atomic) return;
    machine.acquire(warp, uintptr_t(place.at), in.order);
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
        set(warp, to, lane, widened(value, in.type));
      });
    }
  }
  if (atomic) machine.poll(warp, seen);
}

template <int size>
void store(Warp& warp, const Instruction& in, Mask mask) {
  const int bytes = size * in.count;
  const bool atomic = in.order != Order::weak;
  count(warp, in, in.a, in.offset, mask, bytes);
  warp.effect = true;
  for_threads(mask, [&](int lane) {
    const Place place = place_of(warp, in, in.a, in.offset, lane, bytes);
    char data[32];
    for (size_t e = 0; e < in.list.size(); ++e) {
      const uint64_t value = address_of(warp, in.list[e], lane);
      memcpy(data + e * size, &value, size);
    }
    if (place.shadow) place.shadow->write(place.offset, bytes, warp, atomic, !memcmp(place.at, data, size_t(bytes)));
    if (atomic) warp.machine->release(warp, uintptr_t(place.at), in.order);
    memcpy(place.at, data, size_t(bytes));
  });
}

const std::vector<std::string> atomics = {"add", "exch", "max", "min", "or", "and", "cas"};

template <class T>
T combined(int how, T old, T value, T otherwise) {
  switch (how) {
    case 0: return T(old + value);
    case 1: return value;
    case 2: return std::max(old, value);
    case 3: return std::min(old, value);
    default: break;
  }
  if constexpr (std::is_integral_v<T>) return how == 4 ? old | value : how == 5 ? old & value : old == value ? otherwise : old;
  throw Trap("an atomic operation on floating point");
}

template <class T>
void atomic(Warp& warp, const Instruction& in, Mask mask) {
  count(warp, in, in.a, in.offset, mask, int(sizeof(T)));
  for (; mask; mask &= mask - 1) {
    const int lane = __builtin_ctz(mask);
    const Place place = place_of(warp, in, in.a, in.offset, lane, int(sizeof(T)));
    if (place.shadow) place.shadow->read(place.offset, int(sizeof(T)), warp, true);
    warp.machine->acquire(warp, uintptr_t(place.at), in.order);
    T old;
    memcpy(&old, place.at, sizeof old);
    const T value = combined(in.mode, old, Lanes<T>(warp, in.b).get(lane), in.c.bank ? Lanes<T>(warp, in.c).get(lane) : T(0));
    memcpy(place.at, &value, sizeof value);
    warp.machine->release(warp, uintptr_t(place.at), in.order);
    if (in.d.bank) Lanes<T>(warp, in.d).set(lane, old);
  }
}

void start_copy(Warp& warp, const Instruction& in, Mask mask) {
  const int bytes = in.count;
  count(warp, in, in.b, in.offset2, mask, bytes);
  Instruction to = in, from = in;
  to.space = Space::shared;
  from.space = Space::global;
  for_threads(mask, [&](int lane) {
    const uint32_t given = in.c.bank ? std::min(warp.lanes<uint32_t>(in.c)[lane], uint32_t(bytes)) : uint32_t(bytes);
    const Place target = place_of(warp, to, in.a, in.offset, lane, bytes);
    const uint64_t source = address_of(warp, in.b, lane) + uint64_t(in.offset2);
    if (target.shadow) target.shadow->begin_copy(target.offset, bytes, warp);
    if (given) {
      const Place place = global_place(warp, source, bytes);
      if (place.shadow) place.shadow->read(place.offset, int(given), warp);
    }
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
    const uint64_t address = address_of(warp, in.a, lane), rank = warp.lanes<uint32_t>(in.b)[lane];
    if (rank >= warp.block->cluster->blocks.size()) throw Trap("rank " + std::to_string(rank) + " is not in the cluster");
    set(warp, in.d, lane, (address & ~0xff000000ull) | (rank + 1) << 24);
  });
}

void move_pair(Warp& warp, const Instruction& in, Mask mask) {  // into one register
  for_threads(mask, [&](int lane) {
    uint64_t value = 0;
    for (size_t i = 0; i < in.list.size(); ++i) value |= (address_of(warp, in.list[i], lane) & ((1ull << in.count) - 1)) << (i * size_t(in.count));
    set(warp, in.d, lane, value);
  });
}

void split_pair(Warp& warp, const Instruction& in, Mask mask) {
  for_threads(mask, [&](int lane) {
    const uint64_t value = address_of(warp, in.a, lane);
    for (size_t i = 0; i < in.list.size(); ++i) set(warp, in.list[i], lane, value >> (i * size_t(in.count)) & ((1ull << in.count) - 1));
  });
}

void timer(Warp& warp, const Instruction& in, Mask mask) {
  for_threads(mask, [&](int lane) { set(warp, in.d, lane, warp.machine->nanoseconds()); });
}

void nothing(Warp&, const Instruction&, Mask) {}
void fence(Warp& warp, const Instruction&, Mask) { warp.machine->fence(warp); }
void proxy_fence(Warp& warp, const Instruction&, Mask) { warp.proxied = warp.clocks; }

void shuffle(Warp& warp, const Instruction& in, Mask mask) {
  uint32_t from[warp_threads];
  memcpy(from, warp.lanes<uint32_t>(in.a), sizeof from);
  Mask found = 0;
  for_threads(mask, [&](int lane) {
    const int by = int(warp.lanes<uint32_t>(in.b)[lane] & 31), c = int(warp.lanes<uint32_t>(in.c)[lane]), segment = c >> 8 & 31;
    const int last = (lane & segment) | (c & 31 & ~segment);
    const int source = in.mode == 0 ? (lane & segment) | (by & ~segment) : in.mode == 1 ? lane ^ by : in.mode == 2 ? lane - by : lane + by;
    const bool inside = in.mode == 2 ? source >= last : source <= last;
    if (inside && !(mask >> source & 1)) throw Trap("a shuffle from a thread that takes no part");
    if (inside) found |= 1u << lane;
    set(warp, in.d, lane, from[inside ? source : lane]);
  });
  if (in.list.empty()) return;
  Mask& to = warp.predicates[in.list[0].at];
  to = (to & ~mask) | (found & mask);
}

void reduce(Warp& warp, const Instruction& in, Mask mask) {
  const uint32_t* from = warp.lanes<uint32_t>(in.a);
  const bool is_signed = in.type == Type::s32;
  uint32_t result = from[__builtin_ctz(mask)];
  for (Mask rest = mask & (mask - 1); rest; rest &= rest - 1) {
    const uint32_t x = from[__builtin_ctz(rest)];
    const bool more = is_signed ? int32_t(x) > int32_t(result) : x > result;
    result = in.mode == 0 ? result + x : in.mode == 2 ? (more ? x : result) : in.mode == 3 ? (more ? result : x)
           : in.mode == 4 ? result | x : in.mode == 5 ? result & x : result ^ x;
  }
  for_threads(mask, [&](int lane) { set(warp, in.d, lane, result); });
}

void vote(Warp& warp, const Instruction& in, Mask mask) {
  const Mask set_bits = (in.a.bank ? warp.predicates[in.a.at] : all_threads) & mask;
  if (in.mode == 2) {
    for_threads(mask, [&](int lane) { set(warp, in.d, lane, set_bits); });
    return;
  }
  Mask& to = warp.predicates[in.d.at];
  const bool holds = in.mode == 0 ? set_bits == mask : set_bits != 0;
  to = (to & ~mask) | (holds ? mask : 0);
}

// ".relaxed", ".acquire" ... and what makes no difference here: scopes and cache hints.
void take_hints(Statement& s, Order otherwise) {
  constexpr Order orders[] = {Order::relaxed, Order::relaxed, Order::acquire, Order::release, Order::acquire_release, Order::weak};
  const int order = s.take_one({"volatile", "relaxed", "acquire", "release", "acq_rel", "weak"}, -1);
  s.in.order = order < 0 ? otherwise : orders[order];
  s.ignore({"cta", "cluster", "gpu", "sys", "nc", "ca", "cg", "cs", "lu", "cv", "wb", "wt", "L1::no_allocate",
            "L1::evict_last", "L1::evict_first", "L2::64B", "L2::128B", "L2::256B"});
}

void take_space(Statement& s) {
  constexpr Space spaces[] = {Space::global, Space::shared, Space::shared, Space::cluster, Space::param, Space::local};
  const int space = s.take_one({"global", "shared", "shared::cta", "shared::cluster", "param", "local"}, -1);
  s.in.space = space < 0 ? Space::generic : spaces[space];
}

bool bind_load_or_store(Statement& s) {
  const bool loads = s.opcode == "ld";
  take_space(s);
  take_hints(s, Order::weak);
  s.in.count = 1 << (s.take_one({"v1", "v2", "v4", "v8"}, 0));
  const int size = size_of(s.in.type);
  s.expect(2, 2);
  s.in.a = s.address(loads ? 1 : 0, &s.in.offset);
  s.in.list = s.vector(loads ? 0 : 1, size == 8 ? 8 : -1, loads);
  if (int(s.in.list.size()) != s.in.count) throw Trap("a vector of another length than the instruction");
  using Run = decltype(s.in.run);
  constexpr Run all[2][4] = {{load<1>, load<2>, load<4>, load<8>}, {store<1>, store<2>, store<4>, store<8>}};
  s.in.run = all[!loads][__builtin_ctz(unsigned(size))];
  return true;
}

bool bind_atomic(Statement& s) {
  const bool result = s.opcode == "atom";
  take_space(s);
  take_hints(s, Order::relaxed);
  s.in.mode = uint8_t(s.take_one(atomics, 255));
  const int width = size_of(s.in.type), more = s.in.mode == 6;
  s.expect(2 + result + more, 2 + result + more);
  if (result) s.in.d = s.write(0, width);
  s.in.a = s.address(result, &s.in.offset);
  s.in.b = s.read(1 + result, width);
  if (more) s.in.c = s.read(2 + result, width);
  switch (s.in.type) {
    case Type::u32: case Type::b32: s.in.run = atomic<uint32_t>; break;
    case Type::s32: s.in.run = atomic<int32_t>; break;
    case Type::u64: case Type::b64: s.in.run = atomic<uint64_t>; break;
    case Type::f32: s.in.run = atomic<float>; break;
    default: return false;
  }
  return s.in.mode != 255;
}

bool bind_copy(Statement& s) {
  if (!s.take("async")) return false;
  if (s.take("commit_group")) {
    s.in.run = commit_copies;
  } else if (s.take("wait_group") || s.take("wait_all")) {
    s.in.mode = s.arguments.empty();
    s.in.count = s.in.mode ? 0 : int(s.number(0));
    s.in.run = wait_for_copies;
  } else {
    s.expect(3, 4);
    take_hints(s, Order::weak);
    s.ignore({"shared", "global", "shared::cta"});
    s.in.space = Space::global;
    s.in.a = s.address(0, &s.in.offset);
    s.in.b = s.address(1, &s.in.offset2);
    s.in.count = int(s.number(2));
    if (s.arguments.size() == 4) s.in.c = s.read(3, 4);
    s.in.run = start_copy;
    return true;
  }
  s.in.convergent = true;
  return true;
}

bool bind_move(Statement& s) {
  s.expect(2, 2);
  const int width = size_of(s.in.type);
  if (s.arguments[1][0] == '%') {
    if (s.arguments[1].rfind("%clock", 0) == 0 || s.arguments[1].rfind("%globaltimer", 0) == 0) {
      s.in.d = s.write(0, width);
      s.in.run = timer;
      return true;
    }
    s.in.list = s.vector(0, -1, true);
    s.in.a = s.read(1, width);
    s.in.run = split_pair;
  } else {
    s.in.list = s.vector(1, -1, false);
    s.in.d = s.write(0, width);
    s.in.run = move_pair;
  }
  s.in.count = 8 * width / int(s.in.list.size());
  return true;
}

void convert_address(Warp& warp, const Instruction& in, Mask mask) {
  for_threads(mask, [&](int lane) {
    const uint64_t from = address_of(warp, in.a, lane);
    set(warp, in.d, lane, in.mode ? from % window : from + in.offset * window);
  });
}

bool bind_address(Statement& s) {
  s.in.mode = s.take("to");
  const int space = s.take_one({"global", "shared", "param", "local"}, 0);
  s.in.offset = space;
  s.in.d = s.write(0, 8);
  s.in.a = s.read(1, 8);
  s.in.run = convert_address;
  return true;
}

bool bind_warp(Statement& s) {
  s.take("sync");
  s.in.convergent = true;
  if (s.opcode == "shfl") {
    s.expect(5, 5);
    s.in.mode = uint8_t(s.take_one({"idx", "bfly", "up", "down"}, 0));
    const size_t bar = s.arguments[0].find('|');
    if (bar != std::string::npos) s.in.list = {s.read(s.arguments[0].substr(bar + 1), 0)};
    s.arguments[0] = s.arguments[0].substr(0, bar);
    s.in.d = s.write(0, 4);
    s.in.a = s.read(1, 4), s.in.b = s.read(2, 4), s.in.c = s.read(3, 4), s.in.e = s.read(4, 4);
    s.in.run = shuffle;
  } else if (s.opcode == "redux") {
    s.in.mode = uint8_t(s.take_one({"add", "none", "max", "min", "or", "and", "xor"}, 0));
    s.in.d = s.write(0, 4);
    s.in.a = s.read(1, 4), s.in.e = s.read(2, 4);
    s.in.run = reduce;
  } else if (s.opcode == "vote") {
    s.in.mode = uint8_t(s.take_one({"all", "any", "ballot"}, 0));
    s.in.d = s.write(0, s.in.mode == 2 ? 4 : 0);
    s.in.a = s.read(1, 0), s.in.e = s.read(2, 4);
    s.in.run = vote;
  } else {  // activemask
    s.in.convergent = false;
    s.in.mode = 2;
    s.in.d = s.write(0, 4);
    s.in.run = vote;
  }
  return true;
}

}  // namespace

bool bind_memory(Statement& s) {
  const std::string& o = s.opcode;
  if (o == "ld" || o == "st") return bind_load_or_store(s);
  if (o == "atom" || o == "red") return bind_atomic(s);
  if (o == "cp") return bind_copy(s);
  if (o == "mov") return bind_move(s);
  if (o == "cvta") return bind_address(s);
  if (o == "shfl" || o == "redux" || o == "vote" || o == "activemask") return bind_warp(s);
  if (o == "mapa") {
    s.take("shared::cluster");
    const int width = size_of(s.in.type);
    s.in.d = s.write(0, width), s.in.a = s.read(1, width), s.in.b = s.read(2, 4);
    s.in.run = map_address;
    return true;
  }
  if (o == "fence" || o == "membar") {
    const bool proxy = s.take("proxy");
    s.ignore({"acq_rel", "sc", "cta", "cluster", "gpu", "sys", "gl", "async", "shared::cta", "global"});
    s.in.run = proxy ? proxy_fence : fence;
    return true;
  }
  if (o != "prefetch" && o != "griddepcontrol") return false;
  s.ignore({"global", "L1", "L2", "wait", "launch_dependents"});
  s.in.run = nothing;
  return true;
}

bool bind_control(Statement& s) {
  const std::string& o = s.opcode;
  Instruction& in = s.in;
  s.take("aligned");
  if (o == "bra") {
    s.take("uni");
    in.kind = Kind::branch;
    branch_to(s);
  } else if (o == "ret" || o == "exit") {
    in.kind = Kind::leave;
  } else if (o == "nanosleep") {
    in.kind = Kind::pause;
  } else if ((o == "bar" && s.take("warp")) && s.take("sync")) {
    in.convergent = true;
    in.e = s.read(0, 4);
    in.run = nothing;
  } else if (o == "barrier" && s.take("cluster")) {
    in.kind = s.take("wait") ? Kind::cluster_wait : Kind::cluster_arrive;
    s.take("arrive");
    const bool relaxed = s.take("relaxed");
    s.ignore({"acquire", "release"});
    in.order = relaxed ? Order::relaxed : in.kind == Kind::cluster_wait ? Order::acquire : Order::release;
    in.convergent = true;
  } else if (o == "bar" || o == "barrier") {
    s.take("cta");
    in.kind = s.take("sync") ? Kind::barrier : Kind::arrive;
    if (in.kind == Kind::arrive && !s.take("arrive")) return false;
    in.convergent = true;
    s.expect(1, 2);
    in.a = s.read(0, 4);
    if (s.arguments.size() == 2) in.b = s.read(1, 4);
  } else {
    return false;
  }
  return true;
}

}  // namespace ptx
