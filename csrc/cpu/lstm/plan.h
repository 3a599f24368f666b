// From a call to what the engines run: checks, chunks of steps with their unique input rows, and both directions on
// their threads.
#pragma once

#include <functional>
#include <vector>

#include "../engine.h"

namespace elmo_fast::cpu {

struct DirectionSchedule {
  std::vector<int32_t> unique_rows;   // rows of `inputs`, chunk by chunk, in order of first use
  std::vector<int32_t> unique_index;  // [S] index among the unique rows of its chunk
  std::vector<Chunk> chunks;
  int64_t max_unique = 0;
};

struct LstmSchedule {
  int64_t steps = 0;               // without trailing steps of no slot
  std::vector<int64_t> row_begin;  // [steps] first packed row
  DirectionSchedule direction[2];
};

// These throw std::invalid_argument on sizes and indices that do not fit together; the second leaves out what outputs
// need.
void check_lstm_call(const LstmCall& call);
void check_lstm_inputs(const LstmCall& call);
void check_shape(const LstmShape& shape);

LstmSchedule make_schedule(const LstmCall& call);

// The plan of a checked call, but for scratch and what is saved. It points into `call` and `schedule`; `packed_size` is
// that of one direction.
LstmPlan make_plan(const LstmCall& call, const LstmSchedule& schedule, size_t packed_size);

// An even number of threads makes two teams of one direction each; an odd one works on both in turn.
inline int lstm_teams(int threads) { return threads % 2 == 0 ? 2 : 1; }

// Runs run(direction, team) on every thread; directions of one team after each other.
void run_directions(int threads, const std::function<void(int direction, Team team)>& run);

}  // namespace elmo_fast::cpu
