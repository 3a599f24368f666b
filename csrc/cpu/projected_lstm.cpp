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

void run_direction(void* context, int direction, Team team) {
  const LstmJob& job = *static_cast<LstmJob*>(context);
  job.engine->run(job.plan, job.plan.direction[direction], team);
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
