#include "packed_header.h"

#include <cstring>
#include <stdexcept>
#include <string>

#include "isa_dispatch.h"

namespace elmo_fast {
namespace cpu {
namespace {

constexpr uint32_t format_version = 1;

std::string described(const PackedHeader& h) {
  const bool known = h.isa >= 0 && h.isa <= static_cast<int32_t>(Isa::amx_emulated);
  const char* names[] = {"lstm", "linear", "lstm gradients", "a training forward"};
  std::string text = std::string(h.op >= 0 && h.op < 4 ? names[h.op] : "an unknown op") + " for " +
                     (known ? isa_name(static_cast<Isa>(h.isa)) : "an unknown instruction set") +
                     ", precision " + std::to_string(h.precision) + (h.op == 1 ? ", sizes and epilogue" : ", sizes");
  for (int k = 0; k < 3; ++k) text += " " + std::to_string(h.sizes[k]);
  return text + ", version " + std::to_string(h.version);
}

PackedHeader header_of(int32_t op, int32_t isa, int32_t precision, size_t bytes) {
  PackedHeader header = {};
  std::memcpy(header.magic, "elmofast", 8);
  header.version = format_version;
  header.op = op;
  header.isa = isa;
  header.precision = precision;
  header.bytes = bytes;
  return header;
}

PackedHeader with_sizes(PackedHeader header, int64_t first, int64_t second, int64_t third) {
  header.sizes[0] = first;
  header.sizes[1] = second;
  header.sizes[2] = third;
  return header;
}

void check_alignment(const void* packed) {
  if (packed == nullptr || reinterpret_cast<uintptr_t>(packed) % 4 != 0)
    throw std::invalid_argument("packed: expected a buffer aligned to 4 bytes");
}

void check_size(size_t size, uint64_t least) {
  if (size < least)
    throw std::invalid_argument("packed: expected " + std::to_string(least) + " bytes, got " + std::to_string(size));
}

}  // namespace

PackedHeader lstm_header(int32_t isa, int32_t precision, int64_t input, int64_t dim, int64_t projection,
                         size_t bytes) {
  return with_sizes(header_of(0, isa, precision, bytes), input, dim, projection);
}

PackedHeader lstm_backward_header(int32_t isa, int64_t input, int64_t dim, int64_t projection, size_t bytes) {
  return with_sizes(header_of(2, isa, 0, bytes), input, dim, projection);
}

PackedHeader lstm_saved_header(int32_t isa, int64_t step_rows, int64_t dim, int64_t projection, size_t bytes) {
  return with_sizes(header_of(3, isa, 0, bytes), step_rows, dim, projection);
}

PackedHeader linear_header(int32_t isa, int32_t precision, int64_t input, int64_t output, int32_t epilogue,
                           size_t bytes) {
  return with_sizes(header_of(1, isa, precision, bytes), input, output, epilogue);
}

void check_buffer(const void* packed, size_t size, const PackedHeader& header) {
  check_alignment(packed);
  check_size(size, header.bytes);
}

void check_packed(const void* packed, size_t size, const PackedHeader& header) {
  check_alignment(packed);
  check_size(size, sizeof(PackedHeader));
  PackedHeader found;
  std::memcpy(&found, packed, sizeof found);
  if (std::memcmp(found.magic, header.magic, 8) != 0)
    throw std::invalid_argument("packed: these are not packed weights");
  if (std::memcmp(&found, &header, sizeof found) != 0)
    throw std::invalid_argument("packed: expected " + described(header) + "; got " + described(found));
  check_size(size, header.bytes);
}

}  // namespace cpu
}  // namespace elmo_fast
