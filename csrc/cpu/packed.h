// Checks of what a caller cannot check, and memory for packed weights.
#pragma once

#include <cstddef>
#include <cstdint>

#include "threads/threads.h"

namespace elmo_fast {
namespace cpu {

// Throws std::invalid_argument with `what` unless `holds`.
void require(bool holds, const char* what);

// Throws std::invalid_argument unless all values lie in [low, high).
void check_range(const int32_t* values, int64_t count, int64_t low, int64_t high, const char* name);

// Weights in the layout of an engine, which runs them.
template <class Engine>
struct Packed {
  const Engine* engine;
  size_t size;
  AlignedMemory memory;
};

// Memory aligned to a cache line, of huge pages if the system has some, which are faster to read at every step.
AlignedMemory packed_memory(size_t size);

}  // namespace cpu
}  // namespace elmo_fast
