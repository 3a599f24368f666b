// The char-CNN of token encoders in fp32: for every filter the largest of its products with the windows of a token's
// characters, which window that was, and the gradients of both. Biases and activations are the caller's.
//
// A window that starts in a token's padding sees padding alone: all of them are one product and one term of a gradient.
// A maximum that several windows share passes its gradient to all of them in equal parts. Sums have a fixed order:
// results have the same bits whatever the thread count, and a token's whatever its batch mates.
#pragma once

#include <cstddef>
#include <cstdint>

namespace elmo_fast {

// Filters of one width: weight [width, dim, filters]. They write columns [first, first + filters).
struct CharBank {
  int64_t width;
  int64_t filters;
  int64_t first;
  const float* weight;
  float* grad_weight;  // backward only; null: not asked for
};

struct CharCnnCall {
  const int32_t* ids;  // [tokens, characters], 0 to table_rows - 1
  int64_t tokens;
  int64_t characters;  // at least the widest bank's width, below 2^15
  int32_t padding;  // the id that fills up tokens
  const float* table;  // [table_rows, dim]
  int64_t table_rows;
  int64_t dim;
  const CharBank* banks;
  int64_t bank_count;
  int64_t filters;  // of all banks together
  int threads;  // >= 1
};

// values [tokens, filters]; picks [tokens, filters]: the first window of the largest product, and 2^16 times how many
// windows share it; null where no gradient is wanted. Throws std::invalid_argument on sizes and ids that do not fit
// together.
void char_cnn_forward(const CharCnnCall& call, float* values, uint32_t* picks);

// grad_values and picks [tokens, filters] -> each bank's grad_weight, and grad_table [table_rows, dim] or null.
void char_cnn_backward(const CharCnnCall& call, const float* grad_values, const uint32_t* picks, float* grad_table);

}  // namespace elmo_fast
