#include "memory.h"

#include <algorithm>

#include "machine.h"

namespace ptx {
namespace {

// Throws if the access of that epoch and what `warp` does now have no order.
void demand_order(const Epoch& epoch, const Warp& warp, const std::string& doing, const char* what) {
  if (warp.machine->ordered(epoch, warp)) return;
  throw Trap("race: " + doing + what + std::to_string(epoch.warp) + " of this wave with no order between them");
}

}  // namespace

void Clocks::join(const Clocks& other) {
  if (of.size() < other.of.size()) of.resize(other.of.size());
  for (size_t i = 0; i < other.of.size(); ++i) of[i] = std::max(of[i], other.of[i]);
}

// Calls f(word, the access's bytes in it as a mask).
template <class F>
void Shadow::for_words(size_t at, size_t bytes, const F& f) {
  for (size_t i = at / 4; 4 * i < at + bytes; ++i) {
    const size_t from = std::max(at, 4 * i) - 4 * i, to = std::min(at + bytes, 4 * i + 4) - 4 * i;
    f(words_[i], ((1u << to) - 1) & ~((1u << from) - 1) & 15);
  }
}

void Shadow::define(size_t at, size_t bytes) {
  for_words(at, bytes, [](Word& word, unsigned mine) { word.defined |= mine & 15; });
}

void Shadow::check_written(const Word& word, unsigned bytes, const Warp& warp, const char* doing) const {
  if (word.copies) throw Trap(std::string(doing) + " bytes that cp.async still copies");
  if (word.last & bytes) demand_order({word.writer, word.written}, warp, doing, " what was written by warp ");
}

void Shadow::end_reads(Word& word, const Warp& warp) {
  if (word.reader != several) {
    demand_order({word.reader, word.read}, warp, "writing", " what is read by warp ");
    word.reader = 0, word.read = 0;
  } else {
    for (const Epoch& epoch : readers_[word.read]) demand_order(epoch, warp, "writing", " what is read by warp ");
    readers_[word.read].clear();
  }
  word.seen = 0;
}

void Shadow::add_reader(Word& word, const Warp& warp) {
  const Epoch mine = {warp.index, warp.clock()};
  if (word.reader != several) {
    if (warp.machine->ordered({word.reader, word.read}, warp)) {
      word.reader = uint16_t(mine.warp), word.read = mine.clock;
      return;
    }
    readers_.push_back({{word.reader, word.read}});
    word.reader = several, word.read = uint32_t(readers_.size() - 1);
  }
  std::vector<Epoch>& readers = readers_[word.read];
  const auto before = std::find_if(readers.begin(), readers.end(), [&](const Epoch& e) { return e.warp == mine.warp; });
  if (before != readers.end())
    before->clock = mine.clock;
  else
    readers.push_back(mine);
}

void Shadow::read(size_t at, size_t bytes, const Warp& warp, bool atomic) {
  for_words(at, bytes, [&](Word& word, unsigned mine) {
    if ((~word.defined & mine) && !word.copies) throw Trap("reading bytes that were never written");
    if (atomic) return;
    check_written(word, mine, warp, "reading");
    word.seen |= mine & 15;
    if (word.reader != warp.index || word.read != warp.clock()) add_reader(word, warp);
  });
}

void Shadow::write(size_t at, size_t bytes, const Warp& warp, bool atomic, bool same) {
  for_words(at, bytes, [&](Word& word, unsigned mine) {
    word.defined |= mine & 15;
    if (atomic) return;
    if (!same) check_written(word, mine, warp, "writing");
    if (word.operands) throw Trap("writing an operand of a wgmma that is not complete");
    if (word.seen & mine) end_reads(word, warp);
    word.last = mine & 15;
    word.writer = uint16_t(warp.index);
    word.written = warp.clock();
  });
}

void Shadow::begin_copy(size_t at, size_t bytes, const Warp& warp) {
  write(at, bytes, warp);
  for_words(at, bytes, [](Word& word, unsigned) { word.copies = 1, word.defined = 0; });
}

void Shadow::end_copy(size_t at, size_t bytes, const Warp& warp) {
  for_words(at, bytes, [&](Word& word, unsigned) { word.copies = 0, word.defined = 15, word.written = warp.clock(); });
}

void Shadow::begin_operand(size_t at, size_t bytes, const Warp& warp) {
  for_words(at, bytes, [&](Word& word, unsigned) {
    if (!warp.machine->visible_to_tensor_cores({word.writer, word.written}, warp))
      throw Trap("wgmma reads what was written with no fence.proxy.async since");
    ++word.operands;
  });
  read(at, bytes, warp);
}

void Shadow::end_operand(size_t at, size_t bytes, const Warp& warp) {
  for_words(at, bytes, [](Word& word, unsigned) { --word.operands; });
  read(at, bytes, warp);
}

void GlobalMemory::add(uintptr_t begin, size_t bytes, const std::string& name, bool tracked, bool defined) {
  const auto after = regions_.upper_bound(begin);
  if (after != regions_.begin() && std::prev(after)->second.end > begin && std::prev(after)->first != begin)
    throw Trap("memory " + name + " overlaps " + std::prev(after)->second.name);
  regions_[begin] = {begin, begin + bytes, name, nullptr};
  if (tracked || !defined) regions_[begin].shadow = std::make_unique<Shadow>(bytes, defined);
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
