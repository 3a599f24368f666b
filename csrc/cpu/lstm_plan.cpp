#include "lstm_plan.h"

#include <stdexcept>

#include "call_scope.h"
#include "packed_header.h"
#include "thread_pool.h"

namespace elmo_fast {
namespace cpu {
namespace {

struct Job {
  void (*run)(void*, int, Team);
  void* context;
  int team_size;
  int directions_per_team;
  Barrier barriers[2];
};

void run_rank(void* context, int rank) {
  Job& job = *static_cast<Job*>(context);
  const IeeeScope ieee;
  const int team = rank / job.team_size;
  for (int k = 0; k < job.directions_per_team; ++k) {
    job.run(job.context, team + k, {rank % job.team_size, job.team_size, &job.barriers[team]});
    barrier_wait(job.barriers[team]);
  }
}

}  // namespace

void check_shape(const LstmShape& s) {
  if (s.input <= 0 || s.dim <= 0 || s.projection <= 0 || s.input > INT32_MAX || s.dim > INT32_MAX / 4 ||
      s.projection > INT32_MAX)
    throw std::invalid_argument("shape: expected positive input, dim and projection");
}

void fill_plan(const LstmCall& call, const LstmSchedule& schedule, LstmPlan& plan) {
  plan.shape = call.shape;
  plan.input_stride = call.multiplied ? 8 * call.shape.dim : call.shape.input * (call.split_input ? 2 : 1);
  plan.multiplied = call.multiplied;
  plan.steps = schedule.steps;
  plan.step_rows = call.step_rows;
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
  direction.out_rows = call.out_rows ? call.out_rows + d * call.step_rows : nullptr;
  direction.chunks = schedule.chunks.data();
  direction.chunk_count = int64_t(schedule.chunks.size());
  direction.reset_h = call.reset_h ? call.reset_h + d * p : nullptr;
  direction.reset_c = call.reset_c ? call.reset_c + d * dim : nullptr;
  direction.output = call.output ? call.output + d * p : nullptr;
  direction.h = call.h + d * p;
  direction.c = call.c + d * dim;
  direction.kept = {};
}

void run_directions(int threads, void (*run)(void* context, int direction, Team team), void* context) {
  const int teams = lstm_teams(threads);
  Job job{run, context, threads / teams, 2 / teams, {}};
  for (Barrier& barrier : job.barriers) barrier.reset(job.team_size);
  run_together(threads, run_rank, &job);
}

}  // namespace cpu
}  // namespace elmo_fast
