#include "packed.h"

#if defined(__unix__) || defined(__APPLE__)
#include <sys/mman.h>
#endif

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string>

#include "engine.h"

namespace elmo_fast::cpu {

Label::Label(const char* op, Precision precision, int64_t first, int64_t second, int64_t third) : text{} {
  const char* const isa = level_of(isa_for(precision)).name;
  std::snprintf(text, sizeof text, "%s for %s, precision %d, sizes %lld %lld %lld", op, isa,
                static_cast<int>(precision), static_cast<long long>(first), static_cast<long long>(second),
                static_cast<long long>(third));
}

void require(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(what);
}

void check_range(const int32_t* values, int64_t count, int64_t low, int64_t high, const char* name) {
  for (int64_t k = 0; k < count; ++k)
    if (values[k] < low || values[k] >= high)
      throw std::invalid_argument(std::string(name) + ": expected " + std::to_string(low) + " to " +
                                  std::to_string(high - 1) + ", got " + std::to_string(values[k]));
}

void check_buffer(const void* packed, size_t size, size_t payload) {
  require(packed && reinterpret_cast<uintptr_t>(packed) % 4 == 0, "packed: expected a buffer aligned to 4 bytes");
  if (size < sizeof(Label) + payload)
    throw std::invalid_argument("packed: expected " + std::to_string(sizeof(Label) + payload) + " bytes, got " +
                                std::to_string(size));
}

void prefer_huge_pages([[maybe_unused]] void* memory, [[maybe_unused]] size_t size) {
#ifdef MADV_HUGEPAGE
  constexpr uintptr_t page = 2 << 20;
  const auto address = reinterpret_cast<uintptr_t>(memory);
  const uintptr_t begin = (address + page - 1) / page * page, end = (address + size) / page * page;
  // If the system has no huge pages, small ones remain.
  if (begin < end) (void)madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#endif
}

void begin_packed(void* packed, size_t size, size_t payload, const Label& label) {
  check_buffer(packed, size, payload);
  prefer_huge_pages(packed, size);
  std::memcpy(packed, &label, sizeof label);
}

void check_packed(const void* packed, size_t size, size_t payload, const Label& label) {
  check_buffer(packed, size, 0);
  const char* bytes = static_cast<const char*>(packed);
  std::string found(bytes, strnlen(bytes, sizeof(Label)));
  if (std::any_of(found.begin(), found.end(), [](char c) { return c < ' ' || c > '~'; })) found.clear();
  if (found != label.text)
    throw std::invalid_argument(std::string("packed: expected ") + label.text + "; got " +
                                (found.empty() ? "something else" : found));
  check_buffer(packed, size, payload);
}

}  // namespace elmo_fast::cpu
