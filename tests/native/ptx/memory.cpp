#include "memory.h"

#include <algorithm>

#include "machine.h"

namespace ptx {
namespace {

// Which bytes of word `at / 4` an access of `bytes` bytes at `at` has.
unsigned bytes_of_word(size_t word, size_t at, size_t bytes) {
  const size_t from = std::max(at, 4 * word) - 4 * word, to = std::min(at + bytes, 4 * word + 4) - 4 * word;
  return ((1u << to) - 1) & ~((1u << from) - 1);
}

std::string races(const char* doing, const char* with, uint32_t warp) {
  return std::string("race: ") + doing + " " + with + " warp " + std::to_string(warp) +
         " of this wave with no order between them";
}

}  // namespace

void Clocks::join(const Clocks& other) {
  if (of.size() < other.of.size()) of.resize(other.of.size());
  for (size_t i = 0; i < other.of.size(); ++i) of[i] = std::max(of[i], other.of[i]);
}

Shadow::Shadow(size_t bytes, bool defined) : words_((bytes + 3) / 4) { define(0, bytes, defined); }

void Shadow::define(size_t at, size_t bytes, bool defined) {
  for (size_t i = at / 4; i < (at + bytes + 3) / 4 && bytes; ++i) {
    const unsigned mine = bytes_of_word(i, at, bytes);
    words_[i].defined = (defined ? words_[i].defined | mine : words_[i].defined & ~mine) & 15;
  }
}

void Shadow::check_written(const Word& word, unsigned bytes, const Warp& warp, const char* doing) const {
  if (word.copies) throw Trap(std::string(doing) + " bytes that cp.async still copies");
  if ((word.last & bytes) && !warp.machine->ordered({word.writer, word.written}, warp))
    throw Trap(races(doing, "what was written by", word.writer));
}

void Shadow::check_readers(const Word& word, const Warp& warp) const {
  if (word.reader != several) {
    if (!warp.machine->ordered({word.reader, word.read}, warp))
      throw Trap(races("writing", "what is read by", word.reader));
    return;
  }
  for (const Epoch& epoch : readers_[word.read])
    if (!warp.machine->ordered(epoch, warp)) throw Trap(races("writing", "what is read by", epoch.warp));
}

void Shadow::clear_readers(Word& word) {
  if (word.reader == several) unused_.push_back(word.read);
  word.reader = 0;
  word.read = 0;
  word.seen = 0;
}

void Shadow::add_reader(Word& word, const Warp& warp) {
  const Epoch mine = {warp.index, warp.clock()};
  if (word.reader != several) {
    if (warp.machine->ordered({word.reader, word.read}, warp)) {
      word.reader = uint16_t(mine.warp);
      word.read = mine.clock;
      return;
    }
    if (unused_.empty()) {
      unused_.push_back(uint32_t(readers_.size()));
      readers_.emplace_back();
    }
    const uint32_t at = unused_.back();
    unused_.pop_back();
    readers_[at].assign({{word.reader, word.read}, mine});
    word.reader = several;
    word.read = at;
    return;
  }
  for (Epoch& epoch : readers_[word.read]) {
    if (epoch.warp != mine.warp) continue;
    epoch.clock = mine.clock;
    return;
  }
  readers_[word.read].push_back(mine);
}

void Shadow::read(size_t at, int bytes, const Warp& warp, bool atomic) {
  for (size_t i = at / 4; 4 * i < at + size_t(bytes); ++i) {
    Word& word = words_[i];
    const unsigned mine = bytes_of_word(i, at, size_t(bytes));
    if ((~word.defined & mine) && !word.copies && warp.machine->settings.unwritten)
      throw Trap("reading bytes that were never written");
    if (atomic) continue;
    check_written(word, mine, warp, "reading");
    word.seen |= mine & 15;
    if (word.reader != several && word.reader == warp.index && word.read == warp.clock()) continue;
    add_reader(word, warp);
  }
}

void Shadow::write(size_t at, int bytes, const Warp& warp, bool atomic, bool same) {
  for (size_t i = at / 4; 4 * i < at + size_t(bytes); ++i) {
    Word& word = words_[i];
    const unsigned mine = bytes_of_word(i, at, size_t(bytes));
    if (!atomic) {
      if (!same) check_written(word, mine, warp, "writing");
      if (word.operands) throw Trap("writing an operand of a wgmma that is not complete");
      if (word.seen & mine) check_readers(word, warp);
      if (word.seen & mine) clear_readers(word);
      word.last = mine & 15;
      word.writer = uint16_t(warp.index);
      word.written = warp.clock();
    }
    word.defined |= mine & 15;
  }
}

void Shadow::begin_copy(size_t at, int bytes, const Warp& warp) {
  write(at, bytes, warp);
  for (size_t i = at / 4; 4 * i < at + size_t(bytes); ++i) words_[i].copies = 1, words_[i].defined = 0;
}

void Shadow::end_copy(size_t at, int bytes, const Warp& warp) {
  for (size_t i = at / 4; 4 * i < at + size_t(bytes); ++i) {
    words_[i].copies = 0;
    words_[i].defined = 15;
    words_[i].written = warp.clock();
  }
}

void Shadow::begin_operand(size_t at, int bytes, const Warp& warp) {
  proxied(at, bytes, warp);
  read(at, bytes, warp);
  for (size_t i = at / 4; 4 * i < at + size_t(bytes); ++i) ++words_[i].operands;
}

void Shadow::end_operand(size_t at, int bytes, const Warp& warp) {
  for (size_t i = at / 4; 4 * i < at + size_t(bytes); ++i) --words_[i].operands;
  read(at, bytes, warp);
}

void Shadow::proxied(size_t at, int bytes, const Warp& warp) const {
  for (size_t i = at / 4; 4 * i < at + size_t(bytes); ++i)
    if (!warp.machine->visible_to_proxy({words_[i].writer, words_[i].written}, warp))
      throw Trap("wgmma reads what was written with no fence.proxy.async since");
}

void GlobalMemory::add(uintptr_t begin, size_t bytes, const std::string& name, bool tracked, bool defined) {
  const auto after = regions_.upper_bound(begin);
  if (after != regions_.begin() && std::prev(after)->second.end > begin && std::prev(after)->first != begin)
    throw Trap("memory " + name + " overlaps " + std::prev(after)->second.name);
  Region& region = regions_[begin];
  region.begin = begin;
  region.end = begin + bytes;
  region.name = name;
  region.shadow.reset(tracked || !defined ? new Shadow(bytes, defined) : nullptr);
  last_ = nullptr;
}

void GlobalMemory::remove(uintptr_t begin) {
  regions_.erase(begin);
  last_ = nullptr;
}

Region* GlobalMemory::find(uintptr_t begin, size_t bytes) {
  if (last_ && begin >= last_->begin && begin + bytes <= last_->end) return last_;
  const auto after = regions_.upper_bound(begin);
  if (after == regions_.begin()) return nullptr;
  Region& region = std::prev(after)->second;
  if (begin + bytes > region.end) return nullptr;
  return last_ = &region;
}

void GlobalMemory::written(uintptr_t begin, size_t bytes) {
  if (!checked() || !bytes) return;
  Region* region = find(begin, bytes);
  if (!region) throw Trap("the host writes " + std::to_string(bytes) + " bytes outside of registered memory");
  if (region->shadow) region->shadow->define(begin - region->begin, bytes, true);
}

}  // namespace ptx
