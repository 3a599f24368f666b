#include "lstm_schedule.h"

#include <stdexcept>
#include <string>

namespace elmo_fast {
namespace cpu {
namespace {

constexpr int64_t default_chunk_rows = 448;

void require(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(what);
}

void check_sizes(const LstmCall& call) {
  require(call.shape.input > 0 && call.shape.dim > 0 && call.shape.projection > 0,
          "shape: expected positive input, dim and projection");
  require(call.steps >= 0 && call.step_rows >= 0 && call.input_rows >= 0 && call.output_rows >= 0 && call.lanes >= 0,
          "steps, step_rows, input_rows, output_rows, lanes: expected no negative number");
  require(call.threads >= 1 && call.threads <= 1024, "threads: expected 1 to 1024");
  require(!(call.split_input && call.multiplied), "split_input, multiplied: expected at most one");
  require(call.chunk_rows >= 0, "chunk_rows: expected 0 or more");
  require(call.cell_clip > 0 && call.proj_clip > 0, "cell_clip, proj_clip: expected more than 0");
  require(call.input_rows <= INT32_MAX && call.output_rows <= INT32_MAX && call.step_rows <= INT32_MAX,
          "input_rows, output_rows, step_rows: expected less than 2^31");
}

void check_live(const LstmCall& call) {
  int64_t total = 0, last = call.lanes;
  for (int64_t t = 0; t < call.steps; ++t) {
    if (call.live[t] < 0 || call.live[t] > last)
      throw std::invalid_argument("live: expected a non-increasing count within lanes, got " +
                                  std::to_string(call.live[t]) + " after " + std::to_string(last));
    last = call.live[t];
    total += last;
  }
  if (total != call.step_rows)
    throw std::invalid_argument("live: expected a sum of " + std::to_string(call.step_rows) + ", got " +
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
        seen_in_(size_t(call.input_rows), -1), slot_of_(size_t(call.input_rows)) {
    out_.slots.resize(size_t(call.step_rows));
  }

  void add_step(int64_t step, int64_t begin, int64_t count) {
    if (out_.chunks.empty()) open(step);
    if (!add_rows(begin, count)) {
      open(step);
      add_rows(begin, count);
    }
    Chunk& chunk = out_.chunks.back();
    chunk.step_end = step + 1;
    chunk.distinct_count = int64_t(out_.distinct.size()) - chunk.distinct_begin;
    if (chunk.distinct_count > out_.max_distinct) out_.max_distinct = chunk.distinct_count;
  }

 private:
  void open(int64_t step) { out_.chunks.push_back({step, step, int64_t(out_.distinct.size()), 0}); }

  // False, and nothing changed but stamps of a chunk about to close, when a begun chunk has no room.
  bool add_rows(int64_t begin, int64_t count) {
    const Chunk& chunk = out_.chunks.back();
    const bool begun = chunk.step_end > chunk.step_begin;
    const size_t before = out_.distinct.size();
    for (int64_t k = begin; k < begin + count; ++k) {
      out_.slots[size_t(k)] = slot(rows_[k], chunk);
      if (begun && int64_t(out_.distinct.size()) - chunk.distinct_begin > limit_) {
        out_.distinct.resize(before);
        return false;
      }
    }
    return true;
  }

  int32_t slot(int32_t row, const Chunk& chunk) {
    const int64_t id = int64_t(out_.chunks.size());
    if (seen_in_[size_t(row)] != id) {
      seen_in_[size_t(row)] = id;
      slot_of_[size_t(row)] = static_cast<int32_t>(int64_t(out_.distinct.size()) - chunk.distinct_begin);
      out_.distinct.push_back(row);
    }
    return slot_of_[size_t(row)];
  }

  const int64_t limit_;
  const int32_t* rows_;
  DirectionSchedule& out_;
  std::vector<int64_t> seen_in_;  // [input_rows] number of the chunk that last used the row
  std::vector<int32_t> slot_of_;  // [input_rows] its slot there
};

}  // namespace

void check_lstm_reading(const LstmCall& call) {
  check_sizes(call);
  require(call.steps == 0 || call.live != nullptr, "live: expected a pointer");
  check_live(call);
  if (call.step_rows == 0) return;
  require(call.rows && call.inputs && call.h && call.c, "rows, inputs, h, c: expected pointers");
  check_range(call.rows, 2 * call.step_rows, 0, call.input_rows, "rows");
}

void check_lstm_call(const LstmCall& call) {
  check_lstm_reading(call);
  if (call.step_rows == 0) return;
  require(call.out_rows && call.output, "out_rows, output: expected pointers");
  check_range(call.out_rows, 2 * call.step_rows, -1, call.output_rows, "out_rows");
}

LstmSchedule make_schedule(const LstmCall& call) {
  LstmSchedule schedule;
  int64_t total = 0;
  while (schedule.steps < call.steps && call.live[schedule.steps] > 0) {
    schedule.begin.push_back(total);
    total += call.live[schedule.steps++];
  }
  for (int d = 0; d < 2; ++d) {
    ChunkBuilder builder(call, call.rows + d * call.step_rows, schedule.direction[d]);
    for (int64_t t = 0; t < schedule.steps; ++t) builder.add_step(t, schedule.begin[size_t(t)], call.live[t]);
  }
  return schedule;
}

}  // namespace cpu
}  // namespace elmo_fast
