// The char-CNN of token encoders in fp32: the maximum of every filter's products with the windows of a token's
// characters, to which its bias is added, after the activation; the window that has the maximum, and the gradients of
// weights and character embeddings. The caller computes the activation's gradient.
//
// Windows that start in a token's padding hold only padding: they share a product. Of windows with the same maximum the
// first takes its gradient. Sums have a fixed order: the bits of a token's results depend neither on the thread count
// nor on its batch mates.
#pragma once

#include <cstddef>
#include <cstdint>

namespace elmo_fast {

enum class Activation : int32_t { relu = 0, tanh = 1 };

// Filters of one width: weight [width, dim, filters]. They write columns [first, first + filters).
struct CharBank {
  int64_t width;
  int64_t filters;
  int64_t first;
  const float* weight;
  float* grad_weight;  // backward only; null: not computed
};

struct CharCnnCall {
  const int32_t* ids;  // [tokens, characters], 0 to table_rows - 1
  int64_t tokens;
  int64_t characters;  // at least the widest bank's width
  int32_t padding;  // the id that pads tokens
  const float* table;  // [table_rows, dim]
  int64_t table_rows;
  int64_t dim;
  const CharBank* banks;
  int64_t bank_count;
  int64_t filters;  // of all banks together
  const float* biases;  // forward only, [filters]; null: none
  Activation activation;  // forward only
  int threads;  // >= 1
};

// values [tokens, filters]; picks [tokens, filters]: the first window with the largest product, null if no gradient is
// needed. Throws std::invalid_argument for ids out of range, or fewer characters than a filter is wide.
void char_cnn_forward(const CharCnnCall& call, float* values, uint32_t* picks);

// grad_values and picks [tokens, filters] -> each bank's grad_weight, and grad_table [table_rows, dim] or null.
void char_cnn_backward(const CharCnnCall& call, const float* grad_values, const uint32_t* picks, float* grad_table);

}  // namespace elmo_fast
