// What a call borrows and puts back: scratch memory and the floating-point mode.
#pragma once

#include <cstddef>
#include <cstdint>

namespace elmo_fast {
namespace cpu {

// At least `bytes` of memory aligned to 4 KB, the calling thread's own, valid until its next call of this function.
// It grows to the largest request and is freed when the thread ends.
char* thread_scratch(size_t bytes);

// IEEE arithmetic (no flushing of denormals, rounding to nearest) while it lives.
class IeeeScope {
 public:
  IeeeScope();
  ~IeeeScope();
  IeeeScope(const IeeeScope&) = delete;
  IeeeScope& operator=(const IeeeScope&) = delete;

 private:
  uint64_t saved_;
};

}  // namespace cpu
}  // namespace elmo_fast
