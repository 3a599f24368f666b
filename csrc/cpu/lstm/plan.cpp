#include "plan.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "../threads.h"

namespace elmo_fast::cpu {
namespace {

constexpr int64_t default_chunk_rows = 448;

void require(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(what);
}

void check_sizes(const LstmCall& call) {
  require(call.steps >= 0 && call.packed_rows >= 0 && call.input_rows >= 0 && call.output_rows >= 0 && call.slots >= 0,
          "steps, packed_rows, input_rows, output_rows, slots: expected no negative number");
  require(call.threads >= 1 && call.threads <= 1024, "threads: expected 1 to 1024");
  require(!(call.split_input && call.precomputed), "split_input, precomputed: expected at most one");
  require(call.chunk_rows >= 0, "chunk_rows: expected 0 or more");
  require(call.cell_clip > 0 && call.proj_clip > 0, "cell_clip, proj_clip: expected more than 0");
  require(call.input_rows <= INT32_MAX && call.output_rows <= INT32_MAX && call.packed_rows <= INT32_MAX,
          "input_rows, output_rows, packed_rows: expected less than 2^31");
  require(call.steps == 0 || call.batch_sizes != nullptr, "batch_sizes: expected a pointer");
}

void check_batch_sizes(const LstmCall& call) {
  int64_t total = 0, last = call.slots;
  for (int64_t t = 0; t < call.steps; ++t) {
    if (call.batch_sizes[t] < 0 || call.batch_sizes[t] > last)
      throw std::invalid_argument("batch_sizes: expected a non-increasing count within slots, got " +
                                  std::to_string(call.batch_sizes[t]) + " after " + std::to_string(last));
    last = call.batch_sizes[t];
    total += last;
  }
  if (total != call.packed_rows)
    throw std::invalid_argument("batch_sizes: expected a sum of " + std::to_string(call.packed_rows) + ", got " +
                                std::to_string(total));
}

void check_range(const int32_t* values, int64_t count, int64_t low, int64_t high, const char* name) {
  for (int64_t k = 0; k < count; ++k)
    if (values[k] < low || values[k] >= high)
      throw std::invalid_argument(std::string(name) + ": expected " + std::to_string(low) + " to " +
                                  std::to_string(high - 1) + ", got " + std::to_string(values[k]));
}

// Adds the rows of steps to chunks; a step that does not fit opens the next one.
class ChunkBuilder {
 public:
  ChunkBuilder(const LstmCall& call, const int32_t* rows, DirectionSchedule& out)
      : limit_(call.chunk_rows > 0 ? call.chunk_rows : default_chunk_rows), rows_(rows), out_(out),
        seen_in_(size_t(call.input_rows), -1), index_of_(size_t(call.input_rows)) {
    out_.unique_index.resize(size_t(call.packed_rows));
  }

  void add_step(int64_t step, int64_t begin, int64_t count) {
    if (out_.chunks.empty()) open(step);
    if (!add_rows(begin, count)) {
      open(step);
      add_rows(begin, count);
    }
    Chunk& chunk = out_.chunks.back();
    chunk.step_end = step + 1;
    chunk.unique_count = int64_t(out_.unique_rows.size()) - chunk.unique_begin;
    out_.max_unique = std::max(out_.max_unique, chunk.unique_count);
  }

 private:
  void open(int64_t step) { out_.chunks.push_back({step, step, int64_t(out_.unique_rows.size()), 0}); }

  // False, and nothing changed but stamps of a chunk about to close, when a chunk with steps would grow over the limit.
  bool add_rows(int64_t begin, int64_t count) {
    const Chunk& chunk = out_.chunks.back();
    const bool has_steps = chunk.step_end > chunk.step_begin;
    const size_t before = out_.unique_rows.size();
    for (int64_t k = begin; k < begin + count; ++k) {
      out_.unique_index[size_t(k)] = add_row(rows_[k], chunk);
      if (has_steps && int64_t(out_.unique_rows.size()) - chunk.unique_begin > limit_) {
        out_.unique_rows.resize(before);
        return false;
      }
    }
    return true;
  }

  int32_t add_row(int32_t row, const Chunk& chunk) {
    const int64_t id = int64_t(out_.chunks.size());
    if (seen_in_[size_t(row)] != id) {
      seen_in_[size_t(row)] = id;
      index_of_[size_t(row)] = static_cast<int32_t>(int64_t(out_.unique_rows.size()) - chunk.unique_begin);
      out_.unique_rows.push_back(row);
    }
    return index_of_[size_t(row)];
  }

  const int64_t limit_;
  const int32_t* rows_;
  DirectionSchedule& out_;
  std::vector<int64_t> seen_in_;   // [input_rows] number of the chunk that last used the row
  std::vector<int32_t> index_of_;  // [input_rows] its index there
};

LstmDirection make_direction(const LstmCall& call, const DirectionSchedule& schedule, int d, size_t packed_size) {
  const int64_t p = call.shape.projection, dim = call.shape.dim;
  LstmDirection direction = {};
  direction.packed = static_cast<const char*>(call.packed) + sizeof(Label) + size_t(d) * packed_size;
  direction.inputs = call.inputs + (call.precomputed ? d * 4 * dim : call.split_input ? d * call.shape.input : 0);
  direction.unique_rows = schedule.unique_rows.data();
  direction.unique_index = schedule.unique_index.data();
  direction.out_rows = call.out_rows ? call.out_rows + d * call.packed_rows : nullptr;
  direction.chunks = schedule.chunks.data();
  direction.chunk_count = int64_t(schedule.chunks.size());
  direction.initial_h = call.initial_h ? call.initial_h + d * p : nullptr;
  direction.initial_c = call.initial_c ? call.initial_c + d * dim : nullptr;
  direction.output = call.output ? call.output + d * p : nullptr;
  direction.h = call.h + d * p;
  direction.c = call.c + d * dim;
  return direction;
}

}  // namespace

void check_shape(const LstmShape& s) {
  require(s.input > 0 && s.dim > 0 && s.projection > 0 && s.input <= INT32_MAX && s.dim <= INT32_MAX / 4 &&
              s.projection <= INT32_MAX,
          "shape: expected positive input, dim and projection");
}

void check_lstm_inputs(const LstmCall& call) {
  check_sizes(call);
  check_batch_sizes(call);
  if (call.packed_rows == 0) return;
  require(call.rows && call.inputs && call.h && call.c, "rows, inputs, h, c: expected pointers");
  check_range(call.rows, 2 * call.packed_rows, 0, call.input_rows, "rows");
}

void check_lstm_call(const LstmCall& call) {
  check_lstm_inputs(call);
  if (call.packed_rows == 0) return;
  require(call.out_rows && call.output, "out_rows, output: expected pointers");
  check_range(call.out_rows, 2 * call.packed_rows, -1, call.output_rows, "out_rows");
}

LstmSchedule make_schedule(const LstmCall& call) {
  LstmSchedule schedule;
  int64_t total = 0;
  while (schedule.steps < call.steps && call.batch_sizes[schedule.steps] > 0) {
    schedule.row_begin.push_back(total);
    total += call.batch_sizes[schedule.steps++];
  }
  for (int d = 0; d < 2; ++d) {
    ChunkBuilder builder(call, call.rows + d * call.packed_rows, schedule.direction[d]);
    for (int64_t t = 0; t < schedule.steps; ++t)
      builder.add_step(t, schedule.row_begin[size_t(t)], call.batch_sizes[t]);
  }
  return schedule;
}

LstmPlan make_plan(const LstmCall& call, const LstmSchedule& schedule, size_t packed_size) {
  LstmPlan plan = {};
  static_cast<LstmCall&>(plan) = call;
  plan.input_stride = call.precomputed ? 8 * call.shape.dim : call.shape.input * (call.split_input ? 2 : 1);
  plan.steps = schedule.steps;
  plan.slots = call.batch_sizes[0];
  plan.row_begin = schedule.row_begin.data();
  plan.max_unique = std::max(schedule.direction[0].max_unique, schedule.direction[1].max_unique);
  for (int d = 0; d < 2; ++d) plan.direction[d] = make_direction(call, schedule.direction[d], d, packed_size);
  return plan;
}

void run_directions(int threads, const std::function<void(int direction, Team team)>& run) {
  const int teams = lstm_teams(threads), team_size = threads / teams;
  Barrier barriers[2];
  for (Barrier& barrier : barriers) barrier.reset(team_size);
  run_together(threads, [&](int rank) {
    const int team = rank / team_size;
    for (int k = 0; k < 2 / teams; ++k) {
      run(team + k, {rank % team_size, team_size, &barriers[team]});
      barriers[team].wait();
    }
  });
}

}  // namespace elmo_fast::cpu
