// The plain product's entry points, and the activations on their own.
#include <cstring>
#include <stdexcept>

#include "../projected_lstm.h"
#include "call_scope.h"
#include "isa_dispatch.h"
#include "packed_header.h"
#include "thread_pool.h"

namespace elmo_fast {
namespace {

using namespace cpu;

PackedHeader header_for(const LinearShape& s, Isa isa) {
  const auto epilogue = static_cast<int32_t>(s.epilogue);
  if (s.input <= 0 || s.output <= 0 || s.input > INT32_MAX || s.output > INT32_MAX)
    throw std::invalid_argument("shape: expected positive input and output");
  if (epilogue < 0 || epilogue > 2) throw std::invalid_argument("epilogue: expected 0, 1 or 2");
  if (s.epilogue == Epilogue::highway && s.input != s.output)
    throw std::invalid_argument("shape: a highway layer has as many outputs as inputs");
  return linear_header(static_cast<int32_t>(isa), static_cast<int32_t>(s.precision), s.input, s.output, epilogue,
                       sizeof(PackedHeader) + linear_engine(s.precision, isa).packed_size(s));
}

struct LinearJob {
  LinearPlan plan;
  const LinearEngine* engine;
};

void run_rank(void* context, int rank) {
  const LinearJob& job = *static_cast<LinearJob*>(context);
  const IeeeScope ieee;
  job.engine->run(job.plan, rank, job.plan.call.threads);
}

void check_call(const LinearCall& call) {
  if (call.rows < 0 || call.x_stride < 0 || call.y_stride < call.shape.output)
    throw std::invalid_argument("rows, x_stride, y_stride: expected rows >= 0, x_stride >= 0, y_stride >= output");
  if (call.threads < 1 || call.threads > 1024) throw std::invalid_argument("threads: expected 1 to 1024");
  if (call.rows > 0 && (!call.x || !call.y)) throw std::invalid_argument("x, y: expected pointers");
}

}  // namespace

size_t linear_packed_size(const LinearShape& shape) { return header_for(shape, isa_for(shape.precision)).bytes; }

void linear_pack(const LinearShape& shape, const float* weight, const float* bias, const float* transform_weight,
                 const float* transform_bias, void* packed, size_t packed_size) {
  const Isa isa = isa_for(shape.precision);
  const PackedHeader header = header_for(shape, isa);
  check_buffer(packed, packed_size, header);
  const bool highway = shape.epilogue == Epilogue::highway;
  if (!weight || highway != (transform_weight != nullptr) || highway != (transform_bias != nullptr) ||
      (highway && !bias))
    throw std::invalid_argument("weight: expected one matrix, and both of each kind for a highway layer");
  std::memcpy(packed, &header, sizeof header);
  linear_engine(shape.precision, isa).pack(shape, {{weight, transform_weight}, {bias, transform_bias}},
                               static_cast<char*>(packed) + sizeof header);
}

void linear_forward(const LinearCall& call) {
  const Isa isa = isa_for(call.shape.precision);
  check_packed(call.packed, call.packed_size, header_for(call.shape, isa));
  check_call(call);
  if (call.rows == 0) return;
  const LinearEngine& engine = linear_engine(call.shape.precision, isa);
  const size_t scratch_size = engine.scratch_size(call);
  LinearJob job{{call, static_cast<const char*>(call.packed) + sizeof(PackedHeader),
                 thread_scratch(scratch_size * size_t(call.threads)), scratch_size},
                &engine};
  run_together(call.threads, run_rank, &job);
}

void sigmoid_forward(const float* x, float* y, int64_t count, Precision precision) {
  const IeeeScope ieee;
  activation_engine(precision, isa_for(precision)).sigmoid(x, y, count);
}

void tanh_forward(const float* x, float* y, int64_t count, Precision precision) {
  const IeeeScope ieee;
  activation_engine(precision, isa_for(precision)).tanh(x, y, count);
}

}  // namespace elmo_fast
