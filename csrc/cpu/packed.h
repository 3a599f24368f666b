// Checks of what a caller gives, and the label that packed weights begin with.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../linear.h"

namespace elmo_fast {
namespace cpu {

// What packed weights and what a forward saves begin with: op, instruction set, precision and sizes in words. They come
// as plain bytes, and those of another layout would be read out of bounds.
struct Label {
  char text[128];
  Label(const char* op, Precision precision, int64_t first, int64_t second, int64_t third);
};

// std::invalid_argument unless it `holds`.
void require(bool holds, const char* what);

void check_threads(int threads);

// The same unless all values lie in [low, high).
void check_range(const int32_t* values, int64_t count, int64_t low, int64_t high, const char* name);

// The same unless `packed` is aligned to 4 bytes and holds a label and `payload` bytes.
void check_buffer(const void* packed, size_t size, size_t payload);

// check_buffer, then puts `label` where packed weights begin. What is read at every step had better lie in huge pages:
// asks for them, which comes before the first write.
void begin_packed(void* packed, size_t size, size_t payload, const Label& label);

// check_buffer, and the buffer begins with `label`.
void check_packed(const void* packed, size_t size, size_t payload, const Label& label);

}  // namespace cpu
}  // namespace elmo_fast
