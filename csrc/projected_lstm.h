// The LSTM with projection and both clips, one layer and both directions per call, and its gradients. This header is
// the contract; csrc/cpu implements it.
//
// One step of one direction, x [in], h [P], c [D]:
//   z = [x, h] W + B                          W [in + P, 4D], gates i, j, f, o along the columns; B [4D]
//   c = clip(sigmoid(f + 1) * c + sigmoid(i) * tanh(j), +-cell_clip)
//   m = sigmoid(o) * tanh(c)
//   h = clip(m W_P, +-proj_clip)              W_P [D, P]; without it (D == P) h = m and proj_clip does not apply
// The forget +1 is not part of B. A clip of +inf does not clip; NaN and inf pass as through torch.clamp. The caller
// adds skip connections, except with add_input. c is fp32 at every precision.
//
// Fixed order: the bits of an output row depend neither on the other rows of the call nor on the thread count. They may
// differ between instruction sets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "linear.h"

namespace elmo_fast {

struct LstmShape {
  int64_t input;  // in, the columns of `inputs` that one direction reads
  int64_t dim;  // D
  int64_t projection;  // P; equal to D when there is no W_P
};

// Name of the instruction set that runs the LSTM and linear layers in `precision` here: generic, neon,
// neon-dotprod, avx2, avx-vnni, avx512, avx512-vnni, avx512-bf16, amx. ELMO_FAST_CPU_ISA caps it. Empty when
// the precision is not available.
std::string lstm_isa(Precision precision);

namespace cpu {
struct LstmEngine;
}
using PackedLstm = cpu::Packed<cpu::LstmEngine>;

// weights[d] [in + P, 4D], biases[d] [4D], projections[d] [D, P] or null: d = 0 forward, 1 backward; read only.
PackedLstm lstm_pack(const LstmShape& shape, Precision precision, const float* const weights[2],
                     const float* const biases[2], const float* const projections[2]);

// One layer over a schedule of T steps over `slots` slots. Slot k runs at step t iff k < batch_sizes[t]; a packed row
// is one running slot of one step, numbered step by step and slot by slot inside, as in PackedSequence: S =
// sum(batch_sizes). No pointer may alias what the call writes (outputs, `h`, `c`); scratch belongs to the engine, a
// buffer per calling thread, reused by its next call.
struct LstmCall {
  LstmShape shape;

  int64_t steps;  // T, may be 0
  const int32_t* batch_sizes;  // [T], non-increasing, 0 <= batch_sizes[t] <= slots
  int64_t packed_rows;  // S
  const uint8_t* sequence_start;  // [S] or null; 1: the initial state replaces the slot's, for both directions
  const float* initial_h;  // [2P] or null (zeros)
  const float* initial_c;  // [2D] or null (zeros)

  float* const* outputs;  // [2, S] where each direction writes P values of a packed row, null: nowhere
  int64_t slots;
  float* h;  // [slots, 2P] state in, final state out; slots that never run are unchanged
  float* c;  // [slots, 2D] likewise

  float cell_clip;  // > 0, +inf: none
  float proj_clip;  // > 0, +inf: none
  int threads;  // >= 1; even counts run the directions side by side, each on half of them
};

// Inputs in the rows of a matrix: [input_rows, in], read by both directions, with `rows`; without, [S, 2 * in] in the
// order of the packed rows, forward half first.
struct LstmRows {
  const float* inputs;
  int64_t input_rows;  // with `rows`
  const int32_t* rows;  // [2, S] row of `inputs` each direction reads, or null; rows that repeat are multiplied once
};

// Inputs at addresses.
struct LstmAddresses {
  const float* const* inputs;  // [2, S] of x [in]
  bool add_input;  // in == P: x + h is written
};

// `weights` of the same shape. Throws std::invalid_argument on rows or batch sizes that do not fit. The caller checks
// the rest.
//
// `saved`, at Precision::highest: also fills the caller's buffer [lstm_saved_size], aligned to 4 bytes, for
// lstm_backward; results have the same bits.
void lstm_forward(const PackedLstm& weights, const LstmCall& call, const LstmRows& from, void* saved = nullptr);
void lstm_forward(const PackedLstm& weights, const LstmCall& call, const LstmAddresses& from);

// Training, in fp32. A clip passes gradients where its argument lies within or on the limits, as torch.clamp does;
// where there is none everything passes. Gradients too have the same bits whatever the thread count.

// Bytes that a forward over `packed_rows` packed rows saves; linear in packed_rows.
size_t lstm_saved_size(const LstmShape& shape, int64_t packed_rows);

// Gradients overwrite the caller's memory; a gradient whose pointer is null is not computed. Nothing may alias.
struct LstmBackwardCall {
  LstmCall forward;  // as of lstm_forward, with h and c as they were before it, read only; without outputs
  LstmRows from;
  const float* weights[2];  // as of lstm_pack
  const float* projections[2];
  const void* saved;
  size_t saved_size;
  const float* grad_output;  // [S, 2P] of the outputs, by packed row, forward half first

  float* grad_h;  // [slots, 2P] in: of the final state; out: of the state before the first step
  float* grad_c;  // [slots, 2D] likewise
  float* grad_inputs[2];  // [input_rows, in] by direction, of which rows that no packed row reads are left alone;
                          // without `rows`, [S, 2 * in] and its second half
  float* grad_weights[2];  // [in + P, 4D]
  float* grad_biases[2];  // [4D]
  float* grad_projections[2];  // [D, P]
  float* grad_initial_h;  // [2P]
  float* grad_initial_c;  // [2D]
};

// Throws std::invalid_argument on a saved buffer of another size.
void lstm_backward(const LstmBackwardCall& call);

}  // namespace elmo_fast
