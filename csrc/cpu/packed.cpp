#include "packed.h"

#if defined(__unix__) || defined(__APPLE__)
#include <sys/mman.h>
#endif

#include <stdexcept>
#include <string>

namespace elmo_fast::cpu {

void require(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(what);
}

void check_range(const int32_t* values, int64_t count, int64_t low, int64_t high, const char* name) {
  for (int64_t k = 0; k < count; ++k)
    if (values[k] < low || values[k] >= high)
      throw std::invalid_argument(std::string(name) + ": expected " + std::to_string(low) + " to " +
                                  std::to_string(high - 1) + ", got " + std::to_string(values[k]));
}

AlignedMemory packed_memory(size_t size) {
  AlignedMemory memory = aligned_memory(size, 64);
#ifdef MADV_HUGEPAGE
  constexpr uintptr_t page = 2 << 20;
  const auto address = reinterpret_cast<uintptr_t>(memory.get());
  const uintptr_t begin = (address + page - 1) / page * page, end = (address + size) / page * page;
  // If the system has no huge pages, small ones remain.
  if (begin < end) (void)madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#endif
  return memory;
}

}  // namespace elmo_fast::cpu
