// The entry points of projected_lstm.h: check, plan, split the work between threads.
#include "../../projected_lstm.h"

#include <cfloat>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "../threads.h"
#include "plan.h"

namespace elmo_fast {
namespace {

using namespace cpu;

Isa training_isa() { return isa_for(Precision::highest); }

const LstmTrainingEngine& training_engine() { return fp32_engine(training_isa()).training; }

Label label_for(const char* op, Isa isa, Precision precision, const LstmShape& s) {
  return Label(op, isa, precision, s.input, s.dim, s.projection);
}

Label saved_label(const LstmShape& s, int64_t packed_rows) {
  return Label("a training forward", training_isa(), Precision::highest, packed_rows, s.dim, s.projection);
}

void check_trainable(const LstmCall& call) {
  check_shape(call.shape);
  if (call.precomputed) throw std::invalid_argument("precomputed: expected false for a call with gradients");
}

// Label, then each direction as `pack` of an engine packs it.
template <class Engine>
void pack_both(const Engine& engine, const Label& label, const LstmShape& shape, const float* const weights[2],
               const float* const biases[2], const float* const projections[2], void* packed, size_t packed_size) {
  const size_t of_direction = engine.packed_size(shape);
  check_buffer(packed, packed_size, 2 * of_direction);
  std::memcpy(packed, &label, sizeof label);
  for (int d = 0; d < 2; ++d) {
    const bool projected = shape.dim != shape.projection;
    if (!weights[d] || (biases && !biases[d]) || projected != (projections[d] != nullptr))
      throw std::invalid_argument("weights: expected W and B, and W_P exactly when dim and projection differ");
    char* to = static_cast<char*>(packed) + sizeof label + size_t(d) * of_direction;
    engine.pack(shape, {weights[d], biases ? biases[d] : nullptr, projections[d]}, to);
  }
}

float* saved_of(const LstmCall& call, int direction, const void* saved) {
  const size_t of_direction = training_engine().saved_size(call.shape, call.packed_rows);
  const char* from = static_cast<const char*>(saved) + sizeof(Label) + static_cast<size_t>(direction) * of_direction;
  return reinterpret_cast<float*>(const_cast<char*>(from));
}

// Scratch of direction d: two teams need one each.
char* scratch_of(void* scratch, size_t size, int teams, int d) {
  return static_cast<char*>(scratch) + (teams == 2 ? size_t(d) * size : 0);
}

// A checked call with packed rows, on the engine's `run` or `run_saving`.
void run_forward(const LstmCall& call, const LstmEngine& engine, decltype(LstmEngine::run) run, void* saved) {
  const LstmSchedule schedule = make_schedule(call);
  LstmPlan plan = make_plan(call, schedule, engine.packed_size(call.shape));
  const int teams = lstm_teams(call.threads);
  const size_t scratch_size = engine.scratch_size(plan, call.threads / teams);
  char* scratch = thread_scratch(scratch_size * size_t(teams));
  for (int d = 0; d < 2; ++d) {
    plan.direction[d].scratch = scratch_of(scratch, scratch_size, teams, d);
    if (saved) plan.direction[d].saved = saved_of(call, d, saved);
  }
  run_directions(call.threads, [&](int d, Team team) { run(plan, plan.direction[d], team); });
}

// One chunk of everything: its unique rows are the call's.
LstmSchedule schedule_in_one_chunk(LstmCall call) {
  call.chunk_rows = INT64_MAX;
  return make_schedule(call);
}

float* half(float* both, int64_t offset) { return both ? both + offset : nullptr; }

LstmBackward make_backward(const LstmBackwardCall& call, int d, const LstmDirection& forward) {
  const int64_t p = call.forward.shape.projection, dim = call.forward.shape.dim;
  const float limit = INFINITY;
  LstmBackward to = {};
  static_cast<LstmDirection&>(to) = forward;
  to.grad_output = call.grad_output + d * p;
  to.grad_h = call.grad_h + d * p;
  to.grad_c = call.grad_c + d * dim;
  to.grad_inputs = call.grad_inputs[d];
  to.grad_weights = call.grad_weights[d];
  to.grad_biases = call.grad_biases[d];
  to.grad_projections = call.grad_projections[d];
  to.grad_initial_h = half(call.grad_initial_h, d * p);
  to.grad_initial_c = half(call.grad_initial_c, d * dim);
  to.clips_cells = call.forward.cell_clip <= FLT_MAX;
  to.clips_projection = call.forward.proj_clip <= FLT_MAX && p != dim;
  to.above_cell_clip = std::nextafter(call.forward.cell_clip, limit);
  to.above_proj_clip = std::nextafter(call.forward.proj_clip, limit);
  return to;
}

// The gradients of a call without packed rows, but for those of its state.
void clear_gradients(const LstmBackwardCall& call) {
  const LstmShape& s = call.forward.shape;
  const auto clear = [](float* to, int64_t count) {
    if (to) std::memset(to, 0, sizeof(float) * size_t(count));
  };
  clear(call.grad_initial_h, 2 * s.projection);
  clear(call.grad_initial_c, 2 * s.dim);
  for (int d = 0; d < 2; ++d) {
    clear(call.grad_weights[d], (s.input + s.projection) * 4 * s.dim);
    clear(call.grad_biases[d], 4 * s.dim);
    clear(call.grad_projections[d], s.dim * s.projection);
  }
}

}  // namespace

std::string lstm_isa(Precision precision) {
  Isa isa;
  return find_isa(precision, &isa) ? isa_name(isa) : "";
}

size_t lstm_packed_size(const LstmShape& shape, Precision precision) {
  const Isa isa = isa_for(precision);
  check_shape(shape);
  return sizeof(Label) + 2 * engine_for(precision, isa).lstm.packed_size(shape);
}

void lstm_pack(const LstmShape& shape, Precision precision, const float* const weights[2], const float* const biases[2],
               const float* const projections[2], void* packed, size_t packed_size) {
  const Isa isa = isa_for(precision);
  check_shape(shape);
  pack_both(engine_for(precision, isa).lstm, label_for("lstm", isa, precision, shape), shape, weights, biases,
            projections, packed, packed_size);
}

void lstm_forward(const LstmCall& call) {
  const Isa isa = isa_for(call.precision);
  check_shape(call.shape);
  const LstmEngine& engine = engine_for(call.precision, isa).lstm;
  check_packed(call.packed, call.packed_size, 2 * engine.packed_size(call.shape),
               label_for("lstm", isa, call.precision, call.shape));
  check_lstm_call(call);
  if (call.packed_rows > 0) run_forward(call, engine, engine.run, nullptr);
}

size_t lstm_saved_size(const LstmShape& shape, int64_t packed_rows) {
  check_shape(shape);
  if (packed_rows < 0) throw std::invalid_argument("packed_rows: expected no negative number");
  return sizeof(Label) + 2 * training_engine().saved_size(shape, packed_rows);
}

void lstm_forward_saving(const LstmCall& call, void* saved, size_t saved_size) {
  check_trainable(call);
  const LstmEngine& engine = fp32_engine(training_isa()).lstm;
  check_packed(call.packed, call.packed_size, 2 * engine.packed_size(call.shape),
               label_for("lstm", training_isa(), Precision::highest, call.shape));
  check_lstm_call(call);
  check_buffer(saved, saved_size, lstm_saved_size(call.shape, call.packed_rows) - sizeof(Label));
  const Label label = saved_label(call.shape, call.packed_rows);
  std::memcpy(saved, &label, sizeof label);
  if (call.packed_rows > 0) run_forward(call, engine, training_engine().run_saving, saved);
}

size_t lstm_backward_packed_size(const LstmShape& shape) {
  check_shape(shape);
  return sizeof(Label) + 2 * training_engine().packed_size(shape);
}

void lstm_backward_pack(const LstmShape& shape, const float* const weights[2], const float* const projections[2],
                        void* packed, size_t packed_size) {
  check_shape(shape);
  pack_both(training_engine(), label_for("lstm gradients", training_isa(), Precision::highest, shape), shape, weights,
            nullptr, projections, packed, packed_size);
}

size_t lstm_backward_scratch_size(const LstmCall& forward) {
  check_trainable(forward);
  check_lstm_inputs(forward);
  if (forward.packed_rows == 0) return 0;
  const LstmSchedule schedule = schedule_in_one_chunk(forward);
  const int teams = lstm_teams(forward.threads);
  return size_t(teams) * training_engine().scratch_size(make_plan(forward, schedule, 0), forward.threads / teams);
}

void lstm_backward(const LstmBackwardCall& call) {
  const LstmCall& forward = call.forward;
  const LstmTrainingEngine& engine = training_engine();
  check_trainable(forward);
  check_packed(forward.packed, forward.packed_size, 2 * engine.packed_size(forward.shape),
               label_for("lstm gradients", training_isa(), Precision::highest, forward.shape));
  check_lstm_inputs(forward);
  check_packed(call.saved, call.saved_size, lstm_saved_size(forward.shape, forward.packed_rows) - sizeof(Label),
               saved_label(forward.shape, forward.packed_rows));
  if (forward.packed_rows == 0) return clear_gradients(call);
  if (!call.grad_output || !call.grad_h || !call.grad_c)
    throw std::invalid_argument("grad_output, grad_h, grad_c: expected pointers");
  const LstmSchedule schedule = schedule_in_one_chunk(forward);
  LstmPlan plan = make_plan(forward, schedule, engine.packed_size(forward.shape));
  const int teams = lstm_teams(forward.threads);
  const size_t scratch_size = engine.scratch_size(plan, forward.threads / teams);
  if (!call.scratch || call.scratch_size < scratch_size * size_t(teams))
    throw std::invalid_argument("scratch: expected lstm_backward_scratch_size bytes");
  LstmBackward backward[2];
  for (int d = 0; d < 2; ++d) {
    plan.direction[d].scratch = scratch_of(call.scratch, scratch_size, teams, d);
    plan.direction[d].saved = saved_of(forward, d, call.saved);
    backward[d] = make_backward(call, d, plan.direction[d]);
  }
  run_directions(forward.threads, [&](int d, Team team) { engine.run(plan, backward[d], team); });
}

}  // namespace elmo_fast
