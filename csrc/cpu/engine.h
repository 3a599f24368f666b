// What one instruction set offers to the driver: plain structs and function pointers, nothing inline.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../projected_lstm.h"

namespace elmo_fast {
namespace cpu {

class Barrier;

void barrier_wait(Barrier& barrier);

// One thread's place among those that share a direction (or a product).
struct Team {
  int rank;
  int size;
  Barrier* barrier;
};

// Steps whose input products are computed together, once per distinct row.
struct Chunk {
  int64_t step_begin;
  int64_t step_end;
  int64_t distinct_begin;  // into LstmDirection::distinct
  int64_t distinct_count;
};

// What a forward keeps of one direction for its gradients (backward_layout.h), or nulls.
struct LstmKept {
  float* gates;
  float* cells;
  float* projected;
};

struct LstmDirection {
  const char* packed;
  const float* inputs;       // first column this direction reads
  const int32_t* distinct;   // rows of `inputs`, chunk by chunk
  const int32_t* slots;      // [S] position of a step-row's input among its chunk's distinct rows
  const int32_t* out_rows;   // [S]
  const Chunk* chunks;
  int64_t chunk_count;
  const float* reset_h;      // [P] or null
  const float* reset_c;      // [D] or null
  float* output;             // this direction's half, row stride 2P
  float* h;                  // likewise
  float* c;                  // this direction's half, row stride 2D
  char* scratch;
  LstmKept kept;
};

struct LstmPlan {
  LstmShape shape;
  int64_t input_stride;
  bool multiplied;
  int64_t lanes;         // live[0]: those that ever run
  int64_t steps;         // without the trailing steps of no lane
  int64_t step_rows;     // S
  const int32_t* live;
  const int64_t* begin;  // [steps] first step-row of each step
  const uint8_t* reset;
  int64_t max_distinct;
  float cell_clip;
  float proj_clip;
  LstmDirection direction[2];
};

// One direction of the gradients; the members of LstmDirection that it reads are those of the forward.
struct LstmBackward {
  LstmDirection forward;     // packed for the gradients; one chunk with all distinct rows; h and c read only
  const float* grad_output;  // this direction's half, row stride 2P
  float* grad_h;             // likewise
  float* grad_c;             // this direction's half, row stride 2D
  float* grad_inputs;        // row stride as of the inputs; this and what follows may be null
  float* grad_weights;
  float* grad_biases;
  float* grad_projections;
  float* grad_reset_h;
  float* grad_reset_c;
  bool clips_cells;          // false: there is no such clip
  bool clips_projection;
  float above_cell_clip;     // the smallest number above the limit: x < it exactly where x <= the limit
  float above_proj_clip;
};

struct LinearPlan {
  LinearCall call;
  const char* packed;
  char* scratch;          // [threads] pieces of scratch_size
  size_t scratch_size;
};

struct LstmWeights {
  const float* weight;      // [in + P, 4D]
  const float* bias;        // [4D]
  const float* projection;  // [D, P] or null
};

struct LinearWeights {
  const float* weight[2];
  const float* bias[2];
};

struct LstmEngine {
  size_t (*packed_size)(const LstmShape&);  // of one direction
  void (*pack)(const LstmShape&, const LstmWeights&, char* packed);
  size_t (*scratch_size)(const LstmPlan&, int team_size);  // of one direction
  void (*run)(const LstmPlan&, const LstmDirection&, Team);
};

struct LstmTrainingEngine {
  LstmKept (*kept)(const LstmShape&, int64_t step_rows, float* saved);  // where each part lies in one direction's
  size_t (*saved_row_bytes)(const LstmShape&);                          // of one step-row and direction
  void (*run_keeping)(const LstmPlan&, const LstmDirection&, Team);     // LstmEngine::run that fills `kept`
  size_t (*packed_size)(const LstmShape&);                              // of one direction
  void (*pack)(const LstmShape&, const LstmWeights&, char* packed);     // no bias
  size_t (*scratch_size)(const LstmPlan&, int team_size);               // of one direction
  void (*run)(const LstmPlan&, const LstmBackward&, Team);
};

struct CharCnnPlan;  // char_cnn_plan.h

struct CharCnnEngine {
  size_t (*forward_floats)(const CharCnnPlan&);  // of scratch
  size_t (*backward_floats)(const CharCnnPlan&);
  void (*forward)(const CharCnnPlan&, Team);
  void (*backward)(const CharCnnPlan&, Team);
};

struct LinearEngine {
  size_t (*packed_size)(const LinearShape&);
  void (*pack)(const LinearShape&, const LinearWeights&, char* packed);
  size_t (*scratch_size)(const LinearCall&);  // of one thread
  void (*run)(const LinearPlan&, int rank, int size);
};

// Element by element, for tests: y[k] = f(x[k]).
struct ActivationEngine {
  void (*sigmoid)(const float* x, float* y, int64_t count);
  void (*tanh)(const float* x, float* y, int64_t count);
};

struct Fp32Engine {
  LstmEngine lstm;
  LstmTrainingEngine training;
  LinearEngine linear;
  CharCnnEngine char_cnn;
  ActivationEngine activation;
};

struct Bf16Engine {
  LstmEngine lstm;
  LinearEngine linear;
  ActivationEngine activation;
};

struct AmxEngine {
  Bf16Engine high;
  Bf16Engine medium;
};

const Fp32Engine& generic_engine();
const Fp32Engine& avx2_engine();
const Fp32Engine& avx512_engine();
const AmxEngine& amx_engine();
const AmxEngine& amx_emulated_engine();

}  // namespace cpu
}  // namespace elmo_fast
