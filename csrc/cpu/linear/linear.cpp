// The entry points of linear.h: check packed weights, select the engine, split the work between threads.
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

Label label_for(const LinearShape& s) {
  return Label("linear", s.precision, s.input, s.output, static_cast<int64_t>(s.epilogue));
}

}  // namespace

size_t linear_packed_size(const LinearShape& shape) {
  check_shape(shape);
  return sizeof(Label) + engine_for(shape.precision).linear.packed_size(shape);
}

void linear_pack(const LinearShape& shape, const float* weight, const float* bias, const float* transform_weight,
                 const float* transform_bias, void* packed, size_t packed_size) {
  check_shape(shape);
  const LinearEngine& engine = engine_for(shape.precision).linear;
  begin_packed(packed, packed_size, engine.packed_size(shape), label_for(shape));
  engine.pack(shape, {{weight, transform_weight}, {bias, transform_bias}}, static_cast<char*>(packed) + sizeof(Label));
}

void linear_forward(const LinearCall& call) {
  check_shape(call.shape);
  const LinearEngine& engine = engine_for(call.shape.precision).linear;
  check_packed(call.packed, call.packed_size, engine.packed_size(call.shape), label_for(call.shape));
  if (call.rows == 0) return;
  LinearCall split = call;
  const double work = nanoseconds_of(call);
  split.threads = threads_for(work, call.threads);
  const size_t scratch_size = engine.scratch_size(split);
  char* const scratch = thread_scratch(scratch_size * size_t(split.threads));
  run_claimed(split.threads, work, [&](int rank) { engine.run(split, scratch + scratch_size * size_t(rank), rank); });
}

}  // namespace elmo_fast
