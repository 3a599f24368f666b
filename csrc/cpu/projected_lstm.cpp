// The LSTM's entry points: check, plan, share the work between threads.
#include "../projected_lstm.h"

#include <cstring>
#include <stdexcept>

#include "call_scope.h"
#include "isa_dispatch.h"
#include "lstm_plan.h"
#include "packed_header.h"

namespace elmo_fast {
namespace {

using namespace cpu;

Isa isa_for(Precision precision) {
  const auto number = static_cast<int32_t>(precision);
  if (number < 0 || number > 2) throw std::invalid_argument("precision: expected 0, 1 or 2");
  Isa isa;
  if (!find_isa(precision, &isa))
    throw std::invalid_argument("precision: high and medium need AMX, which is not available here");
  return isa;
}

PackedHeader header_for(const LstmShape& s, Precision precision, Isa isa) {
  check_shape(s);
  const size_t payload = 2 * lstm_engine(precision, isa).packed_size(s);
  return lstm_header(static_cast<int32_t>(isa), static_cast<int32_t>(precision), s.input, s.dim, s.projection,
                     sizeof(PackedHeader) + payload);
}

struct LstmJob {
  LstmPlan plan;
  const LstmEngine* engine;
};

<<<<<<< HEAD
// An even number of threads makes two teams of one direction each; an odd one works on both in turn.
void run_rank(void* context, int rank) {
  LstmJob& job = *static_cast<LstmJob*>(context);
  const IeeeScope ieee;
  const int team = rank / job.team_size;
  for (int k = 0; k < job.directions_per_team; ++k) {
    const LstmDirection& direction = job.plan.direction[team + k];
    job.engine->run(job.plan, direction, {rank % job.team_size, job.team_size, &job.barriers[team]});
    barrier_wait(job.barriers[team]);
  }
}

void fill_plan(const LstmCall& call, const LstmSchedule& schedule, LstmPlan& plan) {
  plan.shape = call.shape;
  plan.input_stride = call.multiplied ? 8 * call.shape.dim : call.shape.input * (call.split_input ? 2 : 1);
  plan.multiplied = call.multiplied;
  plan.steps = schedule.steps;
  plan.lanes = call.live[0];
  plan.live = call.live;
  plan.begin = schedule.begin.data();
  plan.reset = call.reset;
  plan.cell_clip = call.cell_clip;
  plan.proj_clip = call.proj_clip;
  const int64_t a = schedule.direction[0].max_distinct, b = schedule.direction[1].max_distinct;
  plan.max_distinct = a > b ? a : b;
}

void fill_direction(const LstmCall& call, const DirectionSchedule& schedule, int d, size_t packed_size,
                    LstmDirection& direction) {
  const int64_t p = call.shape.projection, dim = call.shape.dim;
  direction.packed = static_cast<const char*>(call.packed) + sizeof(PackedHeader) + size_t(d) * packed_size;
  direction.inputs = call.inputs + (call.multiplied ? d * 4 * dim : call.split_input ? d * call.shape.input : 0);
  direction.distinct = schedule.distinct.data();
  direction.slots = schedule.slots.data();
  direction.out_rows = call.out_rows + d * call.step_rows;
  direction.chunks = schedule.chunks.data();
  direction.chunk_count = int64_t(schedule.chunks.size());
  direction.reset_h = call.reset_h ? call.reset_h + d * p : nullptr;
  direction.reset_c = call.reset_c ? call.reset_c + d * dim : nullptr;
  direction.output = call.output + d * p;
  direction.h = call.h + d * p;
  direction.c = call.c + d * dim;
=======
void run_direction(void* context, int direction, Team team) {
  const LstmJob& job = *static_cast<LstmJob*>(context);
  job.engine->run(job.plan, job.plan.direction[direction], team);
>>>>>>> train-op
}

}  // namespace

std::string lstm_isa(Precision precision) {
  Isa isa;
  return find_isa(precision, &isa) ? isa_name(isa) : "";
}

size_t lstm_packed_size(const LstmShape& shape, Precision precision) {
  return header_for(shape, precision, isa_for(precision)).bytes;
}

void lstm_pack(const LstmShape& shape, Precision precision, const float* const weights[2],
               const float* const biases[2], const float* const projections[2], void* packed, size_t packed_size) {
  const Isa isa = isa_for(precision);
  const PackedHeader header = header_for(shape, precision, isa);
  check_buffer(packed, packed_size, header);
  const LstmEngine& engine = lstm_engine(precision, isa);
  std::memcpy(packed, &header, sizeof header);
  for (int d = 0; d < 2; ++d) {
    const bool projected = shape.dim != shape.projection;
    if (!weights[d] || !biases[d] || projected != (projections[d] != nullptr))
      throw std::invalid_argument("weights: expected W and B, and W_P exactly when dim and projection differ");
    char* to = static_cast<char*>(packed) + sizeof header + size_t(d) * engine.packed_size(shape);
    engine.pack(shape, {weights[d], biases[d], projections[d]}, to);
  }
}

void lstm_forward(const LstmCall& call) {
  const Isa isa = isa_for(call.precision);
  check_packed(call.packed, call.packed_size, header_for(call.shape, call.precision, isa));
  check_lstm_call(call);
  if (call.step_rows == 0) return;
  const LstmSchedule schedule = make_schedule(call);
  LstmJob job;
  job.engine = &lstm_engine(call.precision, isa);
  fill_plan(call, schedule, job.plan);
  const int teams = lstm_teams(call.threads);
  const size_t scratch_size = job.engine->scratch_size(job.plan, call.threads / teams);
  char* scratch = thread_scratch(scratch_size * size_t(teams));
  for (int d = 0; d < 2; ++d) {
    fill_direction(call, schedule.direction[d], d, job.engine->packed_size(call.shape), job.plan.direction[d]);
    job.plan.direction[d].scratch = scratch + (teams == 2 ? size_t(d) * scratch_size : 0);
  }
  run_directions(call.threads, run_direction, &job);
}

}  // namespace elmo_fast
