#include "memory.h"

#include <algorithm>

#include "machine.h"

namespace ptx {
namespace {

[[noreturn]] void race(const Epoch& with, const char* doing) {
  throw Trap(std::string("race: ") + doing + " by warp " + std::to_string(with.warp) + " with no order between them");
}

inline void demand_order(const Epoch& before, const Warp& warp, const char* doing) {
  if (!warp.machine->ordered(before, warp)) race(before, doing);
}

// A fence.proxy.async of the writer or of `warp` has made it visible.
bool visible_to_tensor_cores(const Epoch& written, const Warp& warp) {
  const auto covers = [&](const Warp& by) {
    return written.warp < by.proxied.of.size() && by.proxied.of[written.warp] >= written.clock;
  };
  return written.clock <= warp.machine->base || covers(warp) || covers(warp.machine->warps[written.warp]);
}

}  // namespace

void Clocks::join(const Clocks& other) {
  if (of.size() < other.of.size()) of.resize(other.of.size());
  for (size_t i = 0; i < other.of.size(); ++i) of[i] = std::max(of[i], other.of[i]);
}

// Calls f(word, the access's bytes in it as a mask).
template <class F>
void Shadow::for_words(size_t at, size_t bytes, const F& f) {
  for (const size_t end = at + bytes; at < end; at = (at | 3) + 1)
    f(words_[at / 4], 15u >> (4 - std::min(end - at, 4 - at % 4)) << at % 4 & 15);
}

void Shadow::define(size_t at, size_t bytes) {
  for_words(at, bytes, [](Word& word, unsigned mine) { word.defined |= mine & 15; });
}

void Shadow::end_reads(Word& word, const Warp& warp) {
  word.seen = 0;
  if (word.read.warp != several) {
    demand_order(word.read, warp, "writing what is read");
    word.read = Epoch();
  } else {
    for (const Epoch& reader : readers_[word.read.clock]) demand_order(reader, warp, "writing what is read");
    readers_[word.read.clock].clear();
  }
}

void Shadow::add_reader(Word& word, const Warp& warp) {
  const Epoch mine = {warp.index, warp.clock()};
  if (word.read.warp != several && warp.machine->ordered(word.read, warp)) {
    word.read = mine;
    return;
  }
  if (word.read.warp != several) {
    readers_.push_back({word.read});
    word.read = {several, Clock(readers_.size() - 1)};
  }
  std::vector<Epoch>& readers = readers_[word.read.clock];
  const auto before = std::find_if(readers.begin(), readers.end(), [&](const Epoch& e) { return e.warp == mine.warp; });
  if (before != readers.end()) *before = mine;
  else readers.push_back(mine);
}

void Shadow::read(size_t at, size_t bytes, const Warp& warp, Use use) {
  for_words(at, bytes, [&](Word& word, unsigned mine) {
    if (~word.defined & mine) throw Trap("reading bytes that were never written");
    if (use == Use::atomic) return;
    if (word.copies) throw Trap("reading bytes that cp.async still copies");
    if (word.last & mine) demand_order(word.written, warp, "reading what was written");
    if (use == Use::starts && !visible_to_tensor_cores(word.written, warp))
      throw Trap("wgmma reads what was written with no fence.proxy.async since");
    word.operands = uint16_t(word.operands + (use == Use::starts) - (use == Use::ends));
    word.seen |= mine & 15;
    if (word.read.warp != warp.index || word.read.clock != warp.clock()) add_reader(word, warp);
  });
}

void Shadow::write(size_t at, size_t bytes, const Warp& warp, Use use) {
  for_words(at, bytes, [&](Word& word, unsigned mine) {
    word.defined |= mine & 15;
    if (use == Use::atomic) return;
    if (word.copies && use != Use::ends) throw Trap("writing bytes that cp.async still copies");
    if (word.last & mine && use != Use::same) demand_order(word.written, warp, "writing what was written");
    if (word.operands) throw Trap("writing an operand of a wgmma that is not complete");
    if (word.seen & mine) end_reads(word, warp);
    word.last = mine & 15;
    word.written = {warp.index, warp.clock()};
    word.copies = use == Use::starts;
  });
}

void GlobalMemory::add(uintptr_t begin, size_t bytes, const std::string& name, bool tracked, bool defined) {
  const auto after = regions_.upper_bound(begin);
  if (after != regions_.begin() && std::prev(after)->second.end > begin && std::prev(after)->first != begin)
    throw Trap("memory " + name + " overlaps " + std::prev(after)->second.name);
  auto shadow = tracked || !defined ? std::make_unique<Shadow>(bytes, defined) : nullptr;
  regions_[begin] = {begin, begin + bytes, name, std::move(shadow)};
  last_ = nullptr;
}

Region* GlobalMemory::find(uintptr_t begin, size_t bytes) {
  if (regions_.empty() || (last_ && begin >= last_->begin && begin + bytes <= last_->end)) return last_;
  const auto after = regions_.upper_bound(begin);
  if (after == regions_.begin() || begin + bytes > std::prev(after)->second.end)
    throw Trap("global address " + std::to_string(begin) + " out of bounds, " + std::to_string(bytes) + " bytes");
  return last_ = &std::prev(after)->second;
}

void GlobalMemory::written(uintptr_t begin, size_t bytes) {
  Region* region = bytes ? find(begin, bytes) : nullptr;
  if (region && region->shadow) region->shadow->define(begin - region->begin, bytes);
}

}  // namespace ptx
