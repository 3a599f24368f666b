#include "calls.h"

#include <stdexcept>
#include <string>

namespace elmo_fast {
namespace cuda {
namespace {

void require(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(what);
}

bool aligned(const void* pointer, size_t to) { return reinterpret_cast<uintptr_t>(pointer) % to == 0; }

int64_t checked_live(const Call& call) {
  int64_t last = call.lanes, total = 0;
  for (int32_t t = 0; t < call.steps; ++t) {
    if (call.live[t] < 1 || call.live[t] > last)
      throw std::invalid_argument("live: expected a non-increasing count of 1 to " + std::to_string(call.lanes) +
                                  ", got " + std::to_string(call.live[t]) + " after " + std::to_string(last));
    total += last = call.live[t];
  }
  return total;
}

}  // namespace

void check_call(const Call& call, const Plan& plan) {
  if (plan.reason) throw std::invalid_argument(std::string("plan: ") + plan.reason);
  require(call.operand == Operand::fp16 || call.operand == Operand::bf16, "operand: expected 0 or 1");
  require(call.steps >= 1 && call.live, "steps, live: expected at least one step");
  require(checked_live(call) <= INT32_MAX, "live: expected a sum below 2^31");
  require(call.cell_clip > 0 && call.proj_clip > 0, "cell_clip, proj_clip: expected more than 0");
  require(call.packed && aligned(call.packed, 16), "packed: expected a pointer aligned to 16 bytes");
  require(call.products[0] && call.products[1] && call.output && call.h_first && call.c_first && call.h && call.c,
          "products, output, h_first, c_first, h, c: expected pointers");
  require((call.rows[0] != nullptr) == (call.rows[1] != nullptr), "rows: expected both directions or neither");
  require(call.scratch && aligned(call.scratch, 256), "scratch: expected a pointer aligned to 256 bytes");
  if (call.scratch_size < size_t(plan.scratch))
    throw std::invalid_argument("scratch: expected " + std::to_string(plan.scratch) + " bytes, got " +
                                std::to_string(call.scratch_size));
}

}  // namespace cuda
}  // namespace elmo_fast
