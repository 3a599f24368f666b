// Compares samples of weights, which lie apart in memory, with an earlier copy.
#include <cstdint>
#include <cstring>

#include "arguments.h"

namespace elmo_fast {
namespace {

// `count` pieces of `bytes` bytes, `step` bytes apart, and their contiguous copy.
struct Samples {
  int64_t from, count, step, bytes, copy;
};

constexpr int64_t pieces_ahead = 16;  // misses of the cache that are in flight

bool are_equal(const Samples& samples) {
  const char* from = at<const char>(samples.from);
  const char* copy = at<const char>(samples.copy);
  if (samples.step == samples.bytes)
    return !std::memcmp(from, copy, static_cast<size_t>(samples.count * samples.bytes));
  for (int64_t k = 0; k < samples.count; ++k, from += samples.step, copy += samples.bytes) {
    if (k + pieces_ahead < samples.count) __builtin_prefetch(from + pieces_ahead * samples.step);
    if (std::memcmp(from, copy, static_cast<size_t>(samples.bytes))) return false;
  }
  return true;
}

bool all_are_equal(Address samples, int64_t count) {
  const Samples* all = at<const Samples>(samples);
  for (int64_t k = 0; k < count; ++k)
    if (!are_equal(all[k])) return false;
  return true;
}

}  // namespace

void bind_weight_samples(py::module_& m) {
  m.def("weight_samples_are_equal", all_are_equal,
        "Whether samples equal their copies: the address of int64 [count, 5] (address, pieces, step and size of a "
        "piece in bytes, address of the copy), and count.");
}

}  // namespace elmo_fast
