// The schedule of a checked call: the packed rows of every step, and the chunks of steps whose input projections are
// computed together.
#pragma once

#include <algorithm>
#include <vector>

#include "../engine.h"

namespace elmo_fast::cpu {

// The inputs of one direction: rows at addresses, or `stride` apart from the first. Packed row k reads row rows[k], or
// without `rows` row k.
struct DirectionInputs {
  const float* const* addresses;
  const float* first;
  int64_t stride, count;
  const int32_t* rows;
  bool are_added;  // to the outputs

  const float* at(int64_t row) const { return addresses ? addresses[row] : first + row * stride; }
};

struct DirectionSchedule {
  std::vector<const float*> unique_inputs;  // addresses, chunk by chunk, in order of first use
  std::vector<int32_t> unique_index;        // [S] index among the unique inputs of its chunk
  std::vector<Chunk> chunks;
  int64_t max_unique = 0;

  // A step that would give a chunk more than `limit` unique inputs begins a new chunk.
  DirectionSchedule(const LstmCall& call, const DirectionInputs& inputs, const std::vector<int64_t>& row_begin,
                    int64_t limit)
      : unique_index(size_t(call.packed_rows)), chunks{Chunk{}}, seen_in_(size_t(inputs.count), -1),
        index_of_(seen_in_.size()) {
    for (int64_t step = 0; step < int64_t(row_begin.size()); ++step) {
      const int64_t begin = row_begin[size_t(step)], end = begin + call.batch_sizes[step];
      const size_t before = unique_inputs.size();
      if (add_rows(inputs, begin, end) > limit && step > chunks.back().step_begin) {
        unique_inputs.resize(before);
        chunks.back().unique_count = int64_t(before) - chunks.back().unique_begin;
        chunks.push_back({step, step, int64_t(before), 0});
        add_rows(inputs, begin, end);
      }
      chunks.back().step_end = step + 1;
      max_unique = std::max(max_unique, chunks.back().unique_count);
    }
  }

 private:
  // Adds the inputs of packed rows to the last chunk. Returns the chunk's number of unique inputs.
  int64_t add_rows(const DirectionInputs& inputs, int64_t begin, int64_t end) {
    Chunk& chunk = chunks.back();
    for (int64_t k = begin; k < end; ++k) {
      const auto row = size_t(inputs.rows ? inputs.rows[k] : k);
      if (seen_in_[row] != int64_t(chunks.size())) {
        seen_in_[row] = int64_t(chunks.size());
        index_of_[row] = static_cast<int32_t>(int64_t(unique_inputs.size()) - chunk.unique_begin);
        unique_inputs.push_back(inputs.at(int64_t(row)));
      }
      unique_index[size_t(k)] = index_of_[row];
    }
    return chunk.unique_count = int64_t(unique_inputs.size()) - chunk.unique_begin;
  }

  std::vector<int64_t> seen_in_;   // [rows] number of the chunk that last used the row
  std::vector<int32_t> index_of_;  // [rows] index of the row in that chunk
};

struct LstmSchedule {
  std::vector<int64_t> row_begin;  // [steps] first packed row, without trailing empty steps
  std::vector<DirectionSchedule> direction;

  LstmSchedule(const LstmCall& call, const DirectionInputs inputs[2], int64_t most_unique) {
    int64_t total = 0;
    for (int64_t t = 0; t < call.steps && call.batch_sizes[t] > 0; total += call.batch_sizes[t++])
      row_begin.push_back(total);
    for (int d = 0; d < 2; ++d) direction.emplace_back(call, inputs[d], row_begin, most_unique);
  }
};

}  // namespace elmo_fast::cpu
