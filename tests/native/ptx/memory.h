// Memory as the checks see it. A shadow remembers of every 4 bytes which of them were ever written, who wrote them last
// and who has read them since; vector clocks say which of these accesses the synchronisation has put in order.
#pragma once

#include "program.h"

namespace ptx {

using Clock = uint32_t;

// What one warp has seen of every warp that runs with it.
struct Clocks {
  std::vector<Clock> of;
  void join(const Clocks& other);
};

struct Epoch {
  uint32_t warp = 0;
  Clock clock = 0;
};

// `same`: writes the bytes that are there. Several warps may do so without order between them, as Triton's do.
// From `starts` to `ends` nobody may touch what cp.async writes, nor write what the tensor cores read.
enum class Use { plain, atomic, same, starts, ends };

class Shadow {
 public:
  Shadow() = default;
  Shadow(size_t bytes, bool defined) : words_((bytes + 3) / 4) { define(0, defined ? bytes : 0); }

  // These throw a Trap for bytes that were never written, are still being copied or race.
  void read(size_t at, size_t bytes, const Warp& warp, Use use = Use::plain);
  void write(size_t at, size_t bytes, const Warp& warp, Use use);
  void define(size_t at, size_t bytes);

 private:
  static constexpr uint32_t several = ~0u;
  struct Word {
    Epoch written, read;  // where read.warp is `several`, its clock is an index into readers_
    uint16_t operands = 0;  // wgmmas that read it
    uint16_t defined : 4, last : 4, seen : 4, copies : 1;  // bytes: ever written, last written, read since
    Word() : defined(0), last(0), seen(0), copies(0) {}
  };
  template <class F>
  void for_words(size_t at, size_t bytes, const F& f);
  void end_reads(Word& word, const Warp& warp);
  void add_reader(Word& word, const Warp& warp);

  std::vector<Word> words_;
  std::vector<std::vector<Epoch>> readers_;
};

struct Region {
  uintptr_t begin, end;
  std::string name;
  std::unique_ptr<Shadow> shadow;
};

// Global memory is the host's. Where nothing is registered, any address is taken as valid.
class GlobalMemory {
 public:
  void add(uintptr_t begin, size_t bytes, const std::string& name, bool tracked, bool defined);
  void clear() { regions_.clear(), last_ = nullptr; }
  Region* find(uintptr_t begin, size_t bytes);  // null if nothing is registered; throws if no region has all of it
  void written(uintptr_t begin, size_t bytes);  // by the host

 private:
  std::map<uintptr_t, Region> regions_;
  Region* last_ = nullptr;
};

}  // namespace ptx
