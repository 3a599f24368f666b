// From a call's schedule to chunks of steps with their distinct input rows.
#pragma once

#include <vector>

#include "engine.h"

namespace elmo_fast {
namespace cpu {

struct DirectionSchedule {
  std::vector<int32_t> distinct;  // rows of `inputs`, chunk by chunk, in order of first use
  std::vector<int32_t> slots;     // [S] place among the distinct rows of its chunk
  std::vector<Chunk> chunks;
  int64_t max_distinct = 0;
};

struct LstmSchedule {
  int64_t steps = 0;           // without trailing steps of no lane
  std::vector<int64_t> begin;  // [steps] first step-row
  DirectionSchedule direction[2];
};

// Throws std::invalid_argument on sizes and indices that do not fit together.
void check_lstm_call(const LstmCall& call);

// The same but for where outputs go.
void check_lstm_reading(const LstmCall& call);

LstmSchedule make_schedule(const LstmCall& call);

}  // namespace cpu
}  // namespace elmo_fast
