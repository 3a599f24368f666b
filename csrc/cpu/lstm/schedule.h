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

  // A step with which a chunk would have more than `limit` unique rows opens the next one.
  DirectionSchedule(const LstmCall& call, const int32_t* rows, const std::vector<int64_t>& row_begin, int64_t limit)
      : unique_index(size_t(call.packed_rows)), chunks{Chunk{}}, seen_in_(size_t(call.input_rows), -1),
        index_of_(size_t(call.input_rows)) {
    for (int64_t step = 0; step < int64_t(row_begin.size()); ++step) {
      const int64_t begin = row_begin[size_t(step)], end = begin + call.batch_sizes[step];
      const size_t before = unique_rows.size();
      if (add_rows(rows, begin, end) > limit && step > chunks.back().step_begin) {
        unique_rows.resize(before);
        chunks.back().unique_count = int64_t(before) - chunks.back().unique_begin;
        chunks.push_back({step, step, int64_t(before), 0});
        add_rows(rows, begin, end);
      }
      chunks.back().step_end = step + 1;
      max_unique = std::max(max_unique, chunks.back().unique_count);
    }
  }

 private:
  // Adds packed rows to the last chunk; its unique rows then.
  int64_t add_rows(const int32_t* rows, int64_t begin, int64_t end) {
    Chunk& chunk = chunks.back();
    for (int64_t k = begin; k < end; ++k) {
      const auto row = size_t(rows[k]);
      if (seen_in_[row] != int64_t(chunks.size())) {
        seen_in_[row] = int64_t(chunks.size());
        index_of_[row] = static_cast<int32_t>(int64_t(unique_rows.size()) - chunk.unique_begin);
        unique_rows.push_back(rows[k]);
      }
      unique_index[size_t(k)] = index_of_[row];
    }
    return chunk.unique_count = int64_t(unique_rows.size()) - chunk.unique_begin;
  }

  std::vector<int64_t> seen_in_;   // [input_rows] number of the chunk that last used the row
  std::vector<int32_t> index_of_;  // [input_rows] its index there
};

// Of a checked call.
struct LstmSchedule {
  std::vector<int64_t> row_begin;  // [steps] first packed row, without trailing steps of no slot
  std::vector<DirectionSchedule> direction;

  LstmSchedule(const LstmCall& call, int64_t chunk_rows) {
    int64_t total = 0;
    for (int64_t t = 0; t < call.steps && call.batch_sizes[t] > 0; total += call.batch_sizes[t++])
      row_begin.push_back(total);
    for (int d = 0; d < 2; ++d) direction.emplace_back(call, call.rows + d * call.packed_rows, row_begin, chunk_rows);
  }
};

}  // namespace elmo_fast::cpu
