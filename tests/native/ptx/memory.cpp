// Memory: its checks, and the instructions that read and write it.
#include <set>

#include "machine.h"

namespace ptx {
namespace {

// `by`: the thread, in its warp. Threads of a warp have an order where its clock has moved on, as at bar.warp.sync.
inline void demand_order(const Epoch& before, int by, const Warp& warp, int thread, const char* doing) {
  const bool own = before.warp == warp.index && before.clock == warp.clocks[warp.index];
  if (warp.machine->ordered(before, warp) && !(own && by != thread)) return;
  throw Trap(std::string("race: ") + doing + " by warp " + std::to_string(before.warp) + " with no order between them");
}

// A fence of `by`, which is in order before what `warp` does next, came after `before`.
bool has_fenced(const Warp& by, const Epoch& before, const Warp& warp, Fence fence) {
  const Clocks& proxied = by.proxied[fence];
  return !proxied.empty() && proxied[before.warp] >= before.clock &&
         warp.machine->ordered({by.index, proxied[by.index]}, warp);
}

bool is_fenced(const Epoch& before, const Warp& warp, Fence fence, const Block& owner) {
  const std::vector<Warp>& warps = warp.machine->warps;
  if (before.clock <= warp.machine->base) return true;
  if (fence == fence_of_global) return has_fenced(warp, before, warp, fence);
  for (size_t i = owner.first; i < warps.size() && warps[i].block == &owner; ++i)
    if (has_fenced(warps[i], before, warp, fence)) return true;
  return false;
}

// Calls f(word, the access's bytes in it as a mask).
template <class F>
void for_words(const Place& place, size_t bytes, const F& f) {
  Word* words = place.shadow ? place.shadow->data() : nullptr;
  for (size_t at = place.offset, end = at + bytes; words && at < end; at = (at | 3) + 1)
    f(words[at / 4], uint8_t(15u >> (4 - std::min(end - at, 4 - at % 4)) << at % 4 & 15));
}

// What a whole warp reads it has read before any of its threads goes on.
void end_reads(Word& word, const Warp& warp, int thread) {
  demand_order(word.read, word.reader == whole_warp ? thread : word.reader, warp, thread, "writing what is read");
  for (const Epoch& reader : word.others) demand_order(reader, thread, warp, thread, "writing what is read");
  word.read = Epoch();
  word.others.clear();
  word.seen = 0;
}

void add_reader(Word& word, const Epoch& reader, const Warp& warp) {
  Epoch* place = warp.machine->ordered(word.read, warp) ? &word.read : nullptr;
  for (Epoch& other : word.others)
    if (other.warp == reader.warp) place = &other;
  if (place) *place = reader;
  else word.others.push_back(reader);
}

}  // namespace

void demand_visible(const Word& word, const Warp& warp, Fence fence, const Block& owner) {
  if (!word.by_proxy && !is_fenced(word.written, warp, fence, owner))
    throw Trap("what was written with no fence.proxy.async since");
}

void demand_read(const Word& word, const Warp& warp, const Block& owner) {
  const auto demand = [&](const Epoch& reader) {
    if (reader.clock > warp.machine->warps[reader.warp].used && !is_fenced(reader, warp, fence_of_shared, owner))
      throw Trap("what was read with no fence.proxy.async since");
  };
  demand(word.read);
  for (const Epoch& reader : word.others) demand(reader);
}

void join(Clocks& to, const Clocks& from) {
  if (to.size() < from.size()) to.resize(from.size());
  for (size_t i = 0; i < from.size(); ++i) to[i] = std::max(to[i], from[i]);
}

void Place::read(size_t bytes, const Warp& warp, int thread, Use use) const {
  for_words(*this, bytes, [&](Word& word, uint8_t mine) {
    if (~word.defined & mine) throw Trap("reading bytes that were never written");
    if (use == Use::atomic) return;
    if (word.copies) throw Trap("reading bytes that are still being copied");
    if (word.last & mine) demand_order(word.written, word.writer, warp, thread, "reading what was written");
    if (use == Use::starts) demand_visible(word, warp, fence_of_shared, *warp.block);
    word.operands = uint16_t(word.operands + (use == Use::starts) - (use == Use::ends));
    word.seen |= mine;
    const Epoch now = {warp.index, warp.clocks[warp.index]};
    const auto reads_now = [&] { return word.read.warp == now.warp && word.read.clock == now.clock; };
    const bool again = reads_now();
    if (!again) add_reader(word, now, warp);
    if (reads_now()) word.reader = int8_t(again && word.reader != thread ? several : thread);
  });
}

void Place::write(size_t bytes, const Warp& warp, int thread, Use use, Clock issued) const {
  for_words(*this, bytes, [&](Word& word, uint8_t mine) {
    word.defined |= mine;
    if (use == Use::atomic) return;
    if (word.copies && use != Use::ends) throw Trap("writing bytes that are still being copied");
    if (word.last & mine && use != Use::same)
      demand_order(word.written, word.writer, warp, thread, "writing what was written");
    if (word.operands) throw Trap("writing an operand of a wgmma that is not complete");
    if (word.seen & mine) end_reads(word, warp, thread);
    word.last = mine;
    word.writer = int8_t(thread);
    word.written = {warp.index, issued ? issued : warp.clocks[warp.index]};
    word.copies = use == Use::starts;
    word.by_proxy = false;
  });
}

void GlobalMemory::add(uintptr_t begin, size_t bytes, const std::string& name, bool written) {
  for (const Region& other : regions)
    if (begin != other.begin && begin < other.end && other.begin < begin + bytes)
      throw Trap("memory " + name + " overlaps what is registered");
  auto shadow = written ? nullptr : std::make_unique<Shadow>((bytes + 3) / 4);
  regions.push_front({begin, begin + bytes, std::move(shadow)});
}

Place GlobalMemory::find(uintptr_t begin, size_t bytes) const {
  char* at = reinterpret_cast<char*>(begin);
  for (const Region& region : regions)
    if (begin >= region.begin && begin + bytes <= region.end) return {at, region.shadow.get(), begin - region.begin};
  throw Trap("global address " + std::to_string(begin) + " out of bounds, " + std::to_string(bytes) + " bytes");
}

void GlobalMemory::written(uintptr_t begin, size_t bytes) {
  if (bytes) for_words(find(begin, bytes), bytes, [](Word& word, uint8_t mine) { word.defined |= mine; });
}

static constexpr const char* space_names[] = {"param", "global", "shared", "shared::cluster"};  // by Space

// The block of its cluster whose shared memory a warp accesses; one of its warps must have begun, and it may not leave
// before.
static Block& visited(Warp& warp, uint32_t rank) {
  if (rank >= warp.machine->launch.cluster) throw Trap("rank " + std::to_string(rank) + " is not in the cluster");
  Block& block = warp.block->leader[rank];
  if (&block == warp.block) return block;
  if (!block.alive) throw Trap("the shared memory of a block that has left");
  const Machine& machine = *warp.machine;
  const auto first = warp.clocks.begin() + block.first, end = first + machine.warps.size() / machine.blocks.size();
  if (!block.leader->cluster_barrier.rounds && *std::max_element(first, end) <= machine.base)
    throw Trap("the shared memory of a block that may not have started");
  block.visitors[warp.index] = warp.clocks[warp.index];
  return block;
}

Place Machine::place(Warp& warp, Space space, uint64_t address, size_t bytes) {
  const auto refused = [&](const std::string& before, const std::string& after) {
    return Trap(before + space_names[int(space)] + " address " + std::to_string(address) + after);
  };
  if (address % bytes) throw refused("misaligned ", " for " + std::to_string(bytes) + " bytes");
  if (space == Space::global) return global.find(address, bytes);
  if (space == Space::param) {
    if (address + bytes > kernel.parameter_bytes) throw refused("", " out of bounds");
    return {const_cast<char*>(launch.parameters.data()) + address};
  }
  const uint32_t rank = uint32_t(address) >> 24, at = address & 0xffffff;
  if (rank && space == Space::shared) throw Trap("an address of the cluster in an instruction for the own block");
  Block& block = rank ? visited(warp, rank - 1) : *warp.block;
  if (at + bytes > block.shared.size()) throw refused("", " out of bounds");
  return {block.shared.data() + at, &block.shadow, at};
}

static uint64_t address_of(const Warp& warp, const Address& a, int lane) {
  return value_of(warp, a.base, lane) + uint64_t(a.offset);
}

Place place_of(Warp& warp, const Address& a, int lane) {
  return warp.machine->place(warp, a.space, address_of(warp, a, lane), a.bytes);
}

struct Access : Address {
  bool atomic, acquires, releases;
  std::vector<Operand> data;
};

// "ld.acquire.gpu.global.v2.u32"
static Access access(Parser& s) {
  std::set<std::string> words(s.words.begin(), s.words.end() - 1);
  Space space = words.erase("shared::cta") ? Space::shared : Space::none;
  for (size_t i = 0; i < std::size(space_names); ++i)
    if (words.erase(space_names[i])) space = Space(i);
  const bool acquires = words.erase("acquire"), releases = words.erase("release");
  const bool atomic = words.erase("relaxed") || acquires || releases;
  const size_t count = words.erase("v4") ? 4 : words.erase("v2") ? 2 : 1;
  const size_t bytes = size_t(atoi(s.words.back().c_str() + 1)) / 8;  // 0 of what is no type
  for (const char* known : {"ld", "st", "red", "add", "cluster", "gpu", "nc", "cg", "L1::no_allocate"})
    words.erase(known);
  if (!words.empty()) throw Trap("unknown modifier ." + *words.begin());
  if (space == Space::none || !bytes) throw Trap("an access without a space or a size");
  const bool loads = s.words[0] == "ld";
  return {s.address(loads ? count : 0, space, bytes * count), atomic, acquires, releases,
          s.vector(loads ? 0 : 2, count, -1, loads)};
}

// Of the bytes of a type at a place: s32 keeps its sign, since wider registers take loads of it.
static uint64_t value_at(const char* at, size_t bytes, bool has_sign) {
  uint64_t value = 0;  // little-endian, as the device
  memcpy(&value, at, bytes);
  return has_sign ? uint64_t(int64_t(int32_t(value))) : value;
}

// An acquiring load takes over what was released where it reads. An atomic load may be a poll: others run after it.
static void bind_load(Parser& s) {
  s.in.run = [from = access(s), has_sign = s.words.back() == "s32"](Warp& warp, Mask mask) {
    const auto& released = warp.machine->released;
    const size_t each = from.bytes / from.data.size();
    for_threads(mask, [&](int lane) {
      const Place place = place_of(warp, from, lane);
      place.read(from.bytes, warp, lane, from.atomic ? Use::atomic : Use::plain);
      if (from.acquires && released.count(place.at)) join(warp.clocks, released.at(place.at));
      for (size_t e = 0; e < from.data.size(); ++e)
        set(warp, from.data[e], lane, value_at(place.at + e * each, each, has_sign));
    });
    for (const Operand& o : from.data)
      if (from.space == Space::shared && o.bank == Operand::registers)
        warp.unused_count += !std::exchange(warp.unused[o.at / slot_bytes], 1);
    warp.yields = from.atomic;
  };
}

// st, and red.add, which is a store of a sum and passes on what was released there before
static void bind_store(Parser& s) {
  const Access to = access(s);
  s.in.run = [=, adds = s.words[0] == "red"](Warp& warp, Mask mask) {
    const size_t each = to.bytes / to.data.size();
    warp.acts = true;
    for_threads(mask, [&](int lane) {
      const Place place = place_of(warp, to, lane);
      char data[16];
      if (adds) place.read(to.bytes, warp, lane, Use::atomic);
      for (size_t e = 0; e < to.data.size(); ++e) {
        const uint64_t value = value_of(warp, to.data[e], lane) + (adds ? value_at(place.at, each, false) : 0);
        memcpy(data + e * each, &value, each);
      }
      const bool same = !memcmp(place.at, data, to.bytes);
      place.write(to.bytes, warp, lane, to.atomic ? Use::atomic : same ? Use::same : Use::plain);
      if (to.releases) warp.publish(warp.machine->released[place.at]);
      memcpy(place.at, data, to.bytes);
    });
  };
}

// cp.async "[to], [from], 16, given": zeros follow the bytes that are given. It is done when it is waited for.
static void bind_copy(Parser& s) {
  const size_t bytes = s.number(4);
  const Address to = s.address(0, Space::shared, bytes), from = s.address(2, Space::global, bytes);
  s.in.run = [=, given = s.read(5)](Warp& warp, Mask mask) {
    for_threads(mask, [&](int lane) {
      const size_t length = std::min<size_t>(warp.lanes<uint32_t>(given)[lane], bytes);
      const Place target = place_of(warp, to, lane), source = length ? place_of(warp, from, lane) : Place();
      target.write(bytes, warp, lane, Use::starts);
      source.read(length, warp, lane);
      warp.copies.open.push_back([=, &warp] {
        memset(target.at, 0, bytes);
        memcpy(target.at, source.at, length);
        target.write(bytes, warp, lane, Use::ends);
      });
    });
  };
}

// mov "{low, high}, whole"
static void bind_unpacking(Parser& s) {
  const bool wide = s.words.back() == "b64";
  s.in.run = [=, low = s.write(0), high = s.write(1), from = s.read(2, wide ? 8 : 4)](Warp& warp, Mask mask) {
    for_threads(mask, [&](int lane) {
      const uint64_t value = value_of(warp, from, lane);
      set(warp, low, lane, value & (wide ? 0xffffffff : 0xffff));
      set(warp, high, lane, value >> (wide ? 32 : 16));
    });
  };
}

void add_access(Table& t) {
  t["ld"] = bind_load;
  t["st"] = t["red"] = bind_store;
  t["unpack"] = bind_unpacking;
  t["cp.async.ca.shared.global"] = t["cp.async.cg.shared.global"] = bind_copy;
  t["cp.async.commit_group"] = action([](Warp& warp, Mask) { warp.copies.commit(); });
  t["cp.async.wait_all"] = action([](Warp& warp, Mask) { warp.copies.commit(), warp.copies.wait(0); });
  t["cp.async.wait_group"] = wait_for(&Warp::copies);
}

}  // namespace ptx
