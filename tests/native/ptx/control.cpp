// Branches, barriers and fences, and instructions by which the threads of a warp exchange values.
#include "lanes.h"
#include "module.h"

namespace ptx {
namespace {

void nothing(Warp&, const Instruction&, Mask) {}
void fence(Warp& warp, const Instruction&, Mask) { warp.machine->fence(warp); }
void proxy_fence(Warp& warp, const Instruction&, Mask) { warp.proxied = warp.clocks; }

void set_predicate(const Warp& warp, const Operand& o, Mask mask, Mask values) {
  Mask& to = warp.predicates[o.at];
  to = (to & ~mask) | (values & mask);
}

void shuffle(Warp& warp, const Instruction& in, Mask mask) {
  uint32_t from[warp_threads];
  memcpy(from, warp.lanes<uint32_t>(in.a), sizeof from);
  Mask found = 0;
  for_threads(mask, [&](int lane) {
    const int by = int(warp.lanes<uint32_t>(in.b)[lane] & 31), c = int(warp.lanes<uint32_t>(in.c)[lane]);
    const int segment = c >> 8 & 31, last = (lane & segment) | (c & 31 & ~segment);
    const int sources[] = {(lane & segment) | (by & ~segment), lane ^ by, lane - by, lane + by};
    const int source = sources[in.mode];
    const bool inside = in.mode == 2 ? source >= last : source <= last;
    if (inside && !(mask >> source & 1)) throw Trap("a shuffle from a thread that takes no part");
    found |= Mask(inside) << lane;
    warp.lanes<uint32_t>(in.d)[lane] = from[inside ? source : lane];
  });
  if (!in.list.empty()) set_predicate(warp, in.list[0], mask, found);
}

void reduce(Warp& warp, const Instruction& in, Mask mask) {
  const uint32_t* from = warp.lanes<uint32_t>(in.a);
  uint32_t result = from[__builtin_ctz(mask)];
  for (Mask rest = mask & (mask - 1); rest; rest &= rest - 1) {
    const uint32_t x = from[__builtin_ctz(rest)];
    const bool more = in.type == Type::s32 ? int32_t(x) > int32_t(result) : x > result;
    const uint32_t results[] = {result + x, more ? x : result, more ? result : x, result | x, result & x, result ^ x};
    result = results[in.mode];
  }
  for_threads(mask, [&](int lane) { warp.lanes<uint32_t>(in.d)[lane] = result; });
}

void vote(Warp& warp, const Instruction& in, Mask mask) {
  const Mask those = (in.a.bank ? warp.predicates[in.a.at] : all_threads) & mask;
  if (in.mode == 2)
    for_threads(mask, [&](int lane) { warp.lanes<uint32_t>(in.d)[lane] = those; });
  else
    set_predicate(warp, in.d, mask, (in.mode == 0 ? those == mask : those != 0) ? all_threads : 0);
}

void bind_exchange(Statement& s) {
  Instruction& in = s.in;
  in.convergent = s.take("sync");
  if (s.opcode == "shfl") {
    s.expect(5, 5);
    in.mode = uint8_t(s.take_one({"idx", "bfly", "up", "down"}, 0));
    const size_t bar = s.arguments[0].find('|');
    if (bar != std::string::npos) in.list = {s.operand(s.arguments[0].substr(bar + 1), 0, true)};
    s.arguments[0] = s.arguments[0].substr(0, bar);
    in.d = s.write(0, 4), in.a = s.read(1, 4), in.b = s.read(2, 4), in.c = s.read(3, 4), in.e = s.read(4, 4);
    in.run = shuffle;
  } else if (s.opcode == "redux") {
    in.mode = uint8_t(s.take_one({"add", "max", "min", "or", "and", "xor"}, 0));
    in.d = s.write(0, 4), in.a = s.read(1, 4), in.e = s.read(2, 4);
    in.run = reduce;
  } else {  // vote, activemask
    in.mode = uint8_t(s.take_one({"all", "any", "ballot"}, 2));
    in.d = s.write(0, in.mode == 2 ? 4 : 0);
    if (in.convergent) in.a = s.read(1, 0), in.e = s.read(2, 4);
    in.run = vote;
  }
}

void bind_barrier(Statement& s) {
  Instruction& in = s.in;
  in.convergent = true;
  if (s.take("warp")) {
    s.take("sync");
    in.e = s.read(0, 4);
    in.run = nothing;
  } else if (s.take("cluster")) {
    in.kind = s.take("wait") ? Kind::cluster_wait : Kind::cluster_arrive;
    const bool relaxed = s.take("relaxed");
    s.ignore({"arrive", "acquire", "release"});
    in.order = relaxed ? Order::relaxed : in.kind == Kind::cluster_wait ? Order::acquire : Order::release;
  } else {
    in.kind = s.take("sync") ? Kind::barrier : Kind::arrive;
    s.ignore({"cta", "arrive"});
    s.expect(1, 2);
    in.a = s.read(0, 4);
    if (s.arguments.size() == 2) in.b = s.read(1, 4);
  }
}

}  // namespace

bool bind_control(Statement& s) {
  const std::string& o = s.opcode;
  s.ignore({"aligned", "uni"});
  if (o == "shfl" || o == "redux" || o == "vote" || o == "activemask") {
    bind_exchange(s);
  } else if (o == "bar" || o == "barrier") {
    bind_barrier(s);
  } else if (o == "bra") {
    s.in.kind = Kind::branch;
    branch_to(s);
  } else if (o == "ret" || o == "exit") {
    s.in.kind = Kind::leave;
  } else if (o == "nanosleep") {
    s.in.kind = Kind::pause;
  } else if (o == "fence" || o == "membar") {
    s.in.run = s.take("proxy") ? proxy_fence : fence;
    s.ignore({"acq_rel", "sc", "cta", "cluster", "gpu", "sys", "gl", "async", "shared::cta", "global"});
  } else if (o == "prefetch" || o == "griddepcontrol") {  // launches run one after another
    s.ignore({"global", "L1", "L2", "wait", "launch_dependents"});
    s.in.run = nothing;
  } else {
    return false;
  }
  return true;
}

}  // namespace ptx
