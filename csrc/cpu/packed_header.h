// The first 64 bytes of packed weights: what they are and for which instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

namespace elmo_fast {
namespace cpu {

struct PackedHeader {
  char magic[8];
  uint32_t version;
  int32_t op;         // 0 LSTM, 1 linear, 2 LSTM for gradients, 3 what a forward kept for them
  int32_t isa;
  int32_t precision;
  int64_t sizes[4];   // of a linear: inputs, outputs, epilogue
  uint64_t bytes;     // header included
};

static_assert(sizeof(PackedHeader) == 64, "payload starts on a cache line");

PackedHeader lstm_header(int32_t isa, int32_t precision, int64_t input, int64_t dim, int64_t projection, size_t bytes);
PackedHeader linear_header(int32_t isa, int32_t precision, int64_t input, int64_t output, int32_t epilogue,
                           size_t bytes);

PackedHeader lstm_backward_header(int32_t isa, int64_t input, int64_t dim, int64_t projection, size_t bytes);
PackedHeader lstm_saved_header(int32_t isa, int64_t step_rows, int64_t dim, int64_t projection, size_t bytes);

// Throws std::invalid_argument unless `packed` is aligned to 4 bytes and holds at least `header.bytes`.
void check_buffer(const void* packed, size_t size, const PackedHeader& header);

// check_buffer, and the buffer begins with exactly `header`.
void check_packed(const void* packed, size_t size, const PackedHeader& header);

}  // namespace cpu
}  // namespace elmo_fast
