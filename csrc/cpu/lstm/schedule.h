// Chunks of steps with their unique input rows.
#pragma once

#include <algorithm>
#include <vector>

#include "../engine.h"

namespace elmo_fast::cpu {

constexpr int64_t default_chunk_rows = 448;

struct DirectionSchedule {
  std::vector<int32_t> unique_rows;   // rows of `inputs`, chunk by chunk, in order of first use
  std::vector<int32_t> unique_index;  // [S] index among the unique rows of its chunk
  std::vector<Chunk> chunks;
  int64_t max_unique = 0;
};

// Adds the rows of steps to chunks; a step that does not fit opens the next one.
class ChunkBuilder {
 public:
  ChunkBuilder(const LstmCall& call, const int32_t* rows, int64_t limit, DirectionSchedule& out)
      : limit_(limit), rows_(rows), out_(out), seen_in_(size_t(call.input_rows), -1),
        index_of_(size_t(call.input_rows)) {
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

// Of a checked call; without trailing steps of no slot.
struct LstmSchedule {
  int64_t steps = 0;
  std::vector<int64_t> row_begin;  // [steps] first packed row
  DirectionSchedule direction[2];

  LstmSchedule(const LstmCall& call, int64_t chunk_rows) {
    int64_t total = 0;
    while (steps < call.steps && call.batch_sizes[steps] > 0) {
      row_begin.push_back(total);
      total += call.batch_sizes[steps++];
    }
    for (int d = 0; d < 2; ++d) {
      ChunkBuilder builder(call, call.rows + d * call.packed_rows, chunk_rows, direction[d]);
      for (int64_t t = 0; t < steps; ++t) builder.add_step(t, row_begin[size_t(t)], call.batch_sizes[t]);
    }
  }
};

}  // namespace elmo_fast::cpu
