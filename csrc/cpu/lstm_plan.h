// From a checked call to what the engines run, and both directions on their threads.
#pragma once

#include "lstm_schedule.h"

namespace elmo_fast {
namespace cpu {

void check_shape(const LstmShape& shape);

// `schedule` must outlive the plan. Directions are left to fill_direction.
void fill_plan(const LstmCall& call, const LstmSchedule& schedule, LstmPlan& plan);

// Direction d of a call, but for its scratch; `packed_size` is that of one direction. Nothing is kept.
void fill_direction(const LstmCall& call, const DirectionSchedule& schedule, int d, size_t packed_size,
                    LstmDirection& direction);

// An even number of threads makes two teams of one direction each; an odd one works on both in turn.
inline int lstm_teams(int threads) { return threads % 2 == 0 ? 2 : 1; }

// Runs run(context, direction, team) on every thread, in IEEE arithmetic; directions of one team after each other.
void run_directions(int threads, void (*run)(void* context, int direction, Team team), void* context);

}  // namespace cpu
}  // namespace elmo_fast
