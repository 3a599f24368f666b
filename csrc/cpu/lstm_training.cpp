// The entry points of projected_lstm_training.h: check, plan, share the work between threads.
#include "../projected_lstm_training.h"

#include <cfloat>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "call_scope.h"
#include "isa_dispatch.h"
#include "lstm_plan.h"
#include "packed_header.h"

namespace elmo_fast {
namespace {

using namespace cpu;

Isa training_isa() {
  Isa isa;
  find_isa(Precision::highest, &isa);
  return isa;
}

const LstmTrainingEngine& training_engine() { return fp32_engine(training_isa()).training; }

PackedHeader packed_header(const LstmShape& s) {
  const size_t payload = 2 * training_engine().packed_size(s);
  return lstm_backward_header(static_cast<int32_t>(training_isa()), s.input, s.dim, s.projection,
                              sizeof(PackedHeader) + payload);
}

PackedHeader saved_header(const LstmShape& s, int64_t step_rows) {
  return lstm_saved_header(static_cast<int32_t>(training_isa()), step_rows, s.dim, s.projection,
                           lstm_saved_size(s, step_rows));
}

LstmKept kept_of(const LstmCall& call, int direction, void* saved) {
  const LstmTrainingEngine& engine = training_engine();
  const size_t bytes = engine.saved_row_bytes(call.shape) * static_cast<size_t>(call.step_rows);
  char* from = static_cast<char*>(saved) + sizeof(PackedHeader) + static_cast<size_t>(direction) * bytes;
  return engine.kept(call.shape, call.step_rows, reinterpret_cast<float*>(from));
}

void run_keeping(void* context, int direction, Team team) {
  const LstmPlan& plan = *static_cast<const LstmPlan*>(context);
  training_engine().run_keeping(plan, plan.direction[direction], team);
}

struct BackwardJob {
  LstmPlan plan;
  LstmBackward direction[2];
  const LstmTrainingEngine* engine;
};

void run_backward(void* context, int direction, Team team) {
  const BackwardJob& job = *static_cast<const BackwardJob*>(context);
  job.engine->run(job.plan, job.direction[direction], team);
}

void check_trainable(const LstmCall& call) {
  check_shape(call.shape);
  if (call.multiplied) throw std::invalid_argument("multiplied: expected false for a call with gradients");
}

// One chunk of everything: its distinct rows are the call's.
LstmSchedule whole_schedule(LstmCall call) {
  call.chunk_rows = INT64_MAX;
  return make_schedule(call);
}

float* half(float* both, int64_t offset) { return both ? both + offset : nullptr; }

void fill_backward(const LstmBackwardCall& call, int d, LstmBackward& to) {
  const int64_t p = call.forward.shape.projection, dim = call.forward.shape.dim;
  const float limit = INFINITY;
  to.grad_output = call.grad_output + d * p;
  to.grad_h = call.grad_h + d * p;
  to.grad_c = call.grad_c + d * dim;
  to.grad_inputs = call.grad_inputs[d];
  to.grad_weights = call.grad_weights[d];
  to.grad_biases = call.grad_biases[d];
  to.grad_projections = call.grad_projections[d];
  to.grad_reset_h = half(call.grad_reset_h, d * p);
  to.grad_reset_c = half(call.grad_reset_c, d * dim);
  to.clips_cells = call.forward.cell_clip <= FLT_MAX;
  to.clips_projection = call.forward.proj_clip <= FLT_MAX && p != dim;
  to.above_cell_clip = std::nextafter(call.forward.cell_clip, limit);
  to.above_proj_clip = std::nextafter(call.forward.proj_clip, limit);
}

void clear_resets(const LstmBackwardCall& call) {
  const LstmShape& s = call.forward.shape;
  if (call.grad_reset_h) std::memset(call.grad_reset_h, 0, sizeof(float) * size_t(2 * s.projection));
  if (call.grad_reset_c) std::memset(call.grad_reset_c, 0, sizeof(float) * size_t(2 * s.dim));
}

void clear_weights(const LstmBackwardCall& call) {
  const LstmShape& s = call.forward.shape;
  for (int d = 0; d < 2; ++d) {
    if (call.grad_weights[d])
      std::memset(call.grad_weights[d], 0, sizeof(float) * size_t((s.input + s.projection) * 4 * s.dim));
    if (call.grad_biases[d]) std::memset(call.grad_biases[d], 0, sizeof(float) * size_t(4 * s.dim));
    if (call.grad_projections[d])
      std::memset(call.grad_projections[d], 0, sizeof(float) * size_t(s.dim * s.projection));
  }
}

}  // namespace

size_t lstm_saved_size(const LstmShape& shape, int64_t step_rows) {
  check_shape(shape);
  if (step_rows < 0) throw std::invalid_argument("step_rows: expected no negative number");
  return sizeof(PackedHeader) + 2 * training_engine().saved_row_bytes(shape) * static_cast<size_t>(step_rows);
}

void lstm_forward_saving(const LstmCall& call, void* saved, size_t saved_size) {
  check_trainable(call);
  const LstmEngine& engine = fp32_engine(training_isa()).lstm;
  const size_t payload = engine.packed_size(call.shape);
  check_packed(call.packed, call.packed_size,
               lstm_header(static_cast<int32_t>(training_isa()), 0, call.shape.input, call.shape.dim,
                           call.shape.projection, sizeof(PackedHeader) + 2 * payload));
  check_lstm_call(call);
  const PackedHeader header = saved_header(call.shape, call.step_rows);
  check_buffer(saved, saved_size, header);
  std::memcpy(saved, &header, sizeof header);
  if (call.step_rows == 0) return;
  const LstmSchedule schedule = make_schedule(call);
  LstmPlan plan;
  fill_plan(call, schedule, plan);
  const int teams = lstm_teams(call.threads);
  const size_t scratch_size = engine.scratch_size(plan, call.threads / teams);
  char* scratch = thread_scratch(scratch_size * size_t(teams));
  for (int d = 0; d < 2; ++d) {
    fill_direction(call, schedule.direction[d], d, payload, plan.direction[d]);
    plan.direction[d].scratch = scratch + (teams == 2 ? size_t(d) * scratch_size : 0);
    plan.direction[d].kept = kept_of(call, d, saved);
  }
  run_directions(call.threads, run_keeping, &plan);
}

size_t lstm_backward_packed_size(const LstmShape& shape) {
  check_shape(shape);
  return packed_header(shape).bytes;
}

void lstm_backward_pack(const LstmShape& shape, const float* const weights[2], const float* const projections[2],
                        void* packed, size_t packed_size) {
  check_shape(shape);
  const PackedHeader header = packed_header(shape);
  check_buffer(packed, packed_size, header);
  std::memcpy(packed, &header, sizeof header);
  const LstmTrainingEngine& engine = training_engine();
  for (int d = 0; d < 2; ++d) {
    if (!weights[d] || (shape.dim != shape.projection) != (projections[d] != nullptr))
      throw std::invalid_argument("weights: expected W, and W_P exactly when dim and projection differ");
    char* to = static_cast<char*>(packed) + sizeof header + size_t(d) * engine.packed_size(shape);
    engine.pack(shape, {weights[d], nullptr, projections[d]}, to);
  }
}

size_t lstm_backward_scratch_size(const LstmCall& forward) {
  check_trainable(forward);
  check_lstm_reading(forward);
  if (forward.step_rows == 0) return 0;
  const LstmSchedule schedule = whole_schedule(forward);
  LstmPlan plan;
  fill_plan(forward, schedule, plan);
  const int teams = lstm_teams(forward.threads);
  return size_t(teams) * training_engine().scratch_size(plan, forward.threads / teams);
}

void lstm_backward(const LstmBackwardCall& call) {
  check_trainable(call.forward);
  check_packed(call.forward.packed, call.forward.packed_size, packed_header(call.forward.shape));
  check_lstm_reading(call.forward);
  check_packed(call.saved, call.saved_size, saved_header(call.forward.shape, call.forward.step_rows));
  if (call.forward.step_rows == 0) {
    clear_resets(call);
    return clear_weights(call);
  }
  if (!call.grad_output || !call.grad_h || !call.grad_c)
    throw std::invalid_argument("grad_output, grad_h, grad_c: expected pointers");
  const LstmSchedule schedule = whole_schedule(call.forward);
  BackwardJob job;
  job.engine = &training_engine();
  fill_plan(call.forward, schedule, job.plan);
  const int teams = lstm_teams(call.forward.threads);
  const size_t scratch_size = job.engine->scratch_size(job.plan, call.forward.threads / teams);
  if (!call.scratch || call.scratch_size < scratch_size * size_t(teams))
    throw std::invalid_argument("scratch: expected lstm_backward_scratch_size bytes");
  for (int d = 0; d < 2; ++d) {
    LstmBackward& direction = job.direction[d];
    fill_direction(call.forward, schedule.direction[d], d, job.engine->packed_size(call.forward.shape),
                   direction.forward);
    direction.forward.scratch = static_cast<char*>(call.scratch) + (teams == 2 ? size_t(d) * scratch_size : 0);
    direction.forward.kept = kept_of(call.forward, d, const_cast<void*>(call.saved));
    fill_backward(call, d, direction);
  }
  run_directions(call.forward.threads, run_backward, &job);
}

}  // namespace elmo_fast
