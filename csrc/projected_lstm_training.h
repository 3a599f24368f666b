// Training of the LSTM in projected_lstm.h, in fp32: a forward that keeps what the gradients need, and the gradients.
//
// The numbers of the forward are those of lstm_forward at Precision::highest, to the bit. A clip passes gradients where
// its argument lies within or on the limits, as torch.clamp does; where there is none everything passes. Every sum has
// a fixed order: gradients have the same bits whatever the thread count.
#pragma once

#include "projected_lstm.h"

namespace elmo_fast {

// Bytes that a forward over `step_rows` step-rows keeps; linear in step_rows.
size_t lstm_saved_size(const LstmShape& shape, int64_t step_rows);

// lstm_forward at Precision::highest that also fills saved [saved_size >= lstm_saved_size], aligned to 4 bytes, the
// caller's. It records instruction set and sizes; lstm_backward refuses what does not match.
void lstm_forward_saving(const LstmCall& call, void* saved, size_t saved_size);

// The weights as the gradients read them; arguments as of lstm_pack without biases.
size_t lstm_backward_packed_size(const LstmShape& shape);
void lstm_backward_pack(const LstmShape& shape, const float* const weights[2], const float* const projections[2],
                        void* packed, size_t packed_size);

// Gradients go to the caller's memory, which is overwritten; null leaves one out. Nothing may alias.
struct LstmBackwardCall {
  LstmCall forward;          // as of lstm_forward_saving, but packed by lstm_backward_pack and with h and c as they
                             // were before it, read only; output, out_rows, precision and chunk_rows are not used
  const void* saved;
  size_t saved_size;
  const float* grad_output;  // [S, 2P] of the output row that each step-row wrote

  float* grad_h;             // [lanes, 2P] of the final state in, of the initial state out
  float* grad_c;             // [lanes, 2D] likewise
  float* grad_inputs[2];     // [input_rows, in] by direction, or [input_rows, 2 * in] and the second half of it when
                             // split_input; rows that no step-row reads are left alone
  float* grad_weights[2];    // [in + P, 4D]
  float* grad_biases[2];     // [4D]
  float* grad_projections[2];  // [D, P]
  float* grad_reset_h;       // [2P]
  float* grad_reset_c;       // [2D]

  void* scratch;             // [lstm_backward_scratch_size], aligned to 4 bytes; 64 is faster
  size_t scratch_size;
};

size_t lstm_backward_scratch_size(const LstmCall& forward);

// Throws std::invalid_argument on sizes, indices or buffers that do not fit together.
void lstm_backward(const LstmBackwardCall& call);

}  // namespace elmo_fast
