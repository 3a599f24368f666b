// The LSTM with projection and both clips, one layer and both directions per call, and the plain product that
// shares its micro-kernels. This header is the contract; csrc/cpu implements it. Gradients: projected_lstm_training.h.
//
// One step of one direction, x [in], h [P], c [D]:
//   z = [x, h] W + B                          W [in + P, 4D], gates i, j, f, o along the columns; B [4D]
//   c = clip(sigmoid(f + 1) * c + sigmoid(i) * tanh(j), +-cell_clip)
//   m = sigmoid(o) * tanh(c)
//   h = clip(m W_P, +-proj_clip)              W_P [D, P]; without it (D == P) h = m and proj_clip does not apply
// The forget +1 is not part of B. A clip of +inf is none; NaN and inf pass as through torch.clamp. Sums that skip
// connections need are the caller's.
//
// Fixed order: an output row has the same bits whatever else is in the call, whatever the thread count and the
// chunk size. Different instruction sets may differ from each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace elmo_fast {

// highest: fp32, denormals as IEEE. high: bf16 operands split in two, three products. medium: bf16.
// high and medium need AMX, accumulate in fp32, keep c in fp32 and flush denormals inside products. An infinite input
// stays infinite in every product with a weight that bf16 does not round to zero.
enum class Precision : int32_t { highest = 0, high = 1, medium = 2 };

struct LstmShape {
  int64_t input;       // in, the columns of `inputs` that one direction reads
  int64_t dim;         // D
  int64_t projection;  // P; equal to D when there is no W_P
};

// Name of the instruction set that LSTM and plain product of `precision` run on here: generic, avx2, avx512, amx,
// amx-emulated. ELMO_FAST_CPU_ISA caps it. Empty when the precision is not available.
std::string lstm_isa(Precision precision);

// Bytes of the packed weights of both directions.
size_t lstm_packed_size(const LstmShape& shape, Precision precision);

// weights[d] [in + P, 4D], biases[d] [4D], projections[d] [D, P] or null: d = 0 forward, 1 backward; read only.
// packed [lstm_packed_size] is owned by the caller, aligned to 4 bytes at least (64 is faster), and must not
// change afterwards. It records instruction set, precision and sizes; lstm_forward refuses what does not match.
void lstm_pack(const LstmShape& shape, Precision precision, const float* const weights[2],
               const float* const biases[2], const float* const projections[2], void* packed, size_t packed_size);

// A schedule of T steps over `lanes` lanes. Lane k is live at step t iff k < live[t]; a step-row is one live lane of
// one step, numbered step by step and lane by lane inside: S = sum(live). No pointer may alias an output
// (`output`, `h`, `c`); scratch is the engine's own, one buffer per calling thread, kept for its next call.
struct LstmCall {
  LstmShape shape;
  Precision precision;
  const void* packed;  // from lstm_pack
  size_t packed_size;

  // [input_rows, in] read by both directions, or [input_rows, 2 * in], forward half first, when split_input.
  // When multiplied: x W + B of both directions, [input_rows, 8D], forward half first, each with gates i, j, f, o;
  // linear_forward's bits are those that `highest` computes itself.
  const float* inputs;
  int64_t input_rows;
  bool split_input;
  bool multiplied;

  int64_t steps;             // T, may be 0
  const int32_t* live;       // [T], non-increasing, 0 <= live[t] <= lanes
  int64_t step_rows;         // S
  const int32_t* rows;       // [2, S] row of `inputs` each direction reads; rows may repeat, and are multiplied once
  const int32_t* out_rows;   // [2, S] row of `output` written, -1: none; distinct within a direction
  const uint8_t* reset;      // [S] or null; 1: the lane's state is replaced before the step, for both directions
  const float* reset_h;      // [2P] or null (zeros)
  const float* reset_c;      // [2D] or null (zeros)

  float* output;             // [output_rows, 2P], forward half first; rows not named are left alone
  int64_t output_rows;
  int64_t lanes;
  float* h;                  // [lanes, 2P] initial state in, final state out; lanes never live are left alone
  float* c;                  // [lanes, 2D] likewise

  float cell_clip;           // > 0, +inf: none
  float proj_clip;           // > 0, +inf: none
  int threads;               // >= 1; even counts run the directions side by side, each on half of them
  int64_t chunk_rows;        // distinct input rows multiplied ahead of the recurrence; 0: the default
};

// Throws std::invalid_argument on sizes, indices or packed weights that do not fit together.
void lstm_forward(const LstmCall& call);

// y = epilogue(x W + b) on the same register tiles and in the same fixed order.
// highway: y = g * relu(x Wt + bt) + (1 - g) * x with g = sigmoid(x Wc + bc), K == M.
enum class Epilogue : int32_t { none = 0, relu = 1, highway = 2 };

struct LinearShape {
  int64_t input;   // K
  int64_t output;  // M
  Epilogue epilogue;
  Precision precision = Precision::highest;  // of the products; the epilogue is fp32
};

size_t linear_packed_size(const LinearShape& shape);

// weight [K, M], bias [M] (null: zeros). highway: weight, bias carry Wc, bc and transform_weight [K, K],
// transform_bias [K] carry Wt, bt; null otherwise. packed as for lstm_pack.
void linear_pack(const LinearShape& shape, const float* weight, const float* bias, const float* transform_weight,
                 const float* transform_bias, void* packed, size_t packed_size);

struct LinearCall {
  LinearShape shape;
  const void* packed;
  size_t packed_size;
  const float* x;      // [rows, K], row r at x + r * x_stride; rows may overlap (a sliding window)
  int64_t rows;
  int64_t x_stride;    // floats
  float* y;            // [rows, M], row r at y + r * y_stride; must not alias x
  int64_t y_stride;    // >= M
  int threads;
};

void linear_forward(const LinearCall& call);

// The activations of a precision, element by element, for tests: y[k] = f(x[k]).
void sigmoid_forward(const float* x, float* y, int64_t count, Precision precision);
void tanh_forward(const float* x, float* y, int64_t count, Precision precision);

}  // namespace elmo_fast
