// A barrier over all blocks of a launch: one counter that only grows. Generation g is over when the counter has grown
// by g * blocks; the difference is taken modulo 2^32, so the counter may wrap. A wait that lasts too long sets
// `abort`, and every block that sees it leaves.
#pragma once

#include "portable.h"

namespace elmo_fast {
namespace cuda {

struct BarrierMemory {
  uint32_t count;  // grows by release, is read by acquire
  uint32_t abort;
};

template <class Block>
class GridBarrier {
 public:
  ELMO_HD GridBarrier(BarrierMemory* memory, uint32_t first_count, uint32_t blocks, int64_t nanoseconds,
                      uint32_t* verdict)
      : memory_(memory), target_(first_count), blocks_(blocks), nanoseconds_(nanoseconds), verdict_(verdict) {}

  // All that the block has written is for whoever waits.
  ELMO_HD void arrive(Block& block) {
    block.sync();
    block.first_thread([&] { block.add_release(&memory_->count, 1u); });
    target_ += blocks_;
  }

  // False: the launch is given up.
  ELMO_HD bool wait(Block& block) {
    block.first_thread([&] { *verdict_ = waited(block) ? 1u : 0u; });
    block.sync();
    return *verdict_ != 0;
  }

 private:
  ELMO_HD bool reached(Block& block) const {
    return static_cast<int32_t>(block.load_acquire(&memory_->count) - target_) >= 0;
  }

  ELMO_HD bool waited(Block& block) const {
    if (reached(block)) return true;
    const int64_t begin = block.nanoseconds();
    while (!reached(block)) {
      if (block.load_relaxed(&memory_->abort) != 0) return false;
      if (block.nanoseconds() - begin > nanoseconds_) {
        block.store_relaxed(&memory_->abort, 1u);
        return false;
      }
      block.pause();
    }
    return true;
  }

  BarrierMemory* memory_;
  uint32_t target_;
  const uint32_t blocks_;
  const int64_t nanoseconds_;
  uint32_t* verdict_;
};

}  // namespace cuda
}  // namespace elmo_fast
