// The entry points of linear.h: select the engine, split the work between threads.
#include "../../linear.h"

#include <algorithm>

#include "../engine.h"
#include "../packed.h"

namespace elmo_fast {
namespace {

using namespace cpu;

void check_shape(const LinearShape& s) {
  require(s.input > 0 && s.output > 0 && s.input <= INT32_MAX && s.output <= INT32_MAX,
          "shape: expected positive input and output");
}

// An estimate: 32 multiply-adds or 16 bytes of weights per nanosecond.
double nanoseconds_of(const LinearCall& call) {
  const double weights =
      double(call.shape.input) * double(call.shape.output) * (call.shape.epilogue == Epilogue::highway ? 2 : 1);
  return weights * std::max(double(call.rows) / 32, 0.25);
}

}  // namespace

PackedLinear linear_pack(const LinearShape& shape, const float* weight, const float* bias,
                         const float* transform_weight, const float* transform_bias) {
  check_shape(shape);
  const LinearEngine& engine = engine_for(shape.precision).linear;
  const size_t size = engine.packed_size(shape);
  PackedLinear packed = {&engine, size, packed_memory(size)};
  engine.pack(shape, {{weight, transform_weight}, {bias, transform_bias}}, packed.memory.get());
  return packed;
}

void linear_forward(const PackedLinear& weights, LinearCall call) {
  if (call.rows == 0) return;
  call.packed = weights.memory.get();
  const LinearEngine& engine = *weights.engine;
  const double work = nanoseconds_of(call);
  call.threads = threads_for(work, call.threads);
  const size_t scratch_size = engine.scratch_size(call);
  char* const scratch = thread_scratch(scratch_size * size_t(call.threads));
  run_claimed(call.threads, work, [&](int rank) { engine.run(call, scratch + scratch_size * size_t(rank), rank); });
}

}  // namespace elmo_fast
