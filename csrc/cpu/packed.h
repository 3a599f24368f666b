// Checks of what a caller cannot check, and the label that packed weights begin with.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../linear.h"

namespace elmo_fast {
namespace cpu {

// The start of packed weights and of the buffer that a forward saves: op, instruction set, precision and sizes as text.
// Callers pass both as plain bytes; a buffer of another layout would be read out of bounds.
struct Label {
  char text[128];
  Label(const char* op, Precision precision, int64_t first, int64_t second, int64_t third);
};

// Throws std::invalid_argument with `what` unless `holds`.
void require(bool holds, const char* what);

// Throws std::invalid_argument unless all values lie in [low, high).
void check_range(const int32_t* values, int64_t count, int64_t low, int64_t high, const char* name);

// Throws std::invalid_argument unless `packed` is aligned to 4 bytes and holds a label and `payload` bytes.
void check_buffer(const void* packed, size_t size, size_t payload);

// Requests huge pages, which are faster to read at every step; to be called before the first write.
void prefer_huge_pages(void* memory, size_t size);

// check_buffer, prefer_huge_pages, then writes `label` at the start.
void begin_packed(void* packed, size_t size, size_t payload, const Label& label);

// check_buffer, then throws std::invalid_argument unless the buffer begins with `label`.
void check_packed(const void* packed, size_t size, size_t payload, const Label& label);

}  // namespace cpu
}  // namespace elmo_fast
