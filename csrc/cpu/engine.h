// What one instruction set offers to the entry points: plain structs and function pointers, nothing inline.
#pragma once

#include "../char_cnn.h"
#include "../linear.h"
#include "../projected_lstm.h"
#include "isa.h"
#include "threads.h"

namespace elmo_fast {
namespace cpu {

// A thread's rank among those that share a direction (or a product).
struct Team {
  int rank;
  int size;
  Barrier* barrier;
};

// Steps whose input projections are computed together, once per unique row.
struct Chunk {
  int64_t step_begin;
  int64_t step_end;
  int64_t unique_begin;  // into LstmDirection::unique_rows
  int64_t unique_count;
};

// One direction of a call, without trailing steps of no slot and without the slots that never run: what the call points
// to begins here with what is this direction's, at the stride of both where they lie side by side.
struct LstmDirection : LstmCall {
  const char* weights;  // packed
  int64_t input_stride;
  const int64_t* row_begin;     // [steps] first packed row of each step
  const int32_t* unique_rows;   // rows of `inputs`, or packed rows with `inputs_at`, chunk by chunk
  const int32_t* unique_index;  // [S] index of a packed row's input among its chunk's unique rows
  const Chunk* chunks;
  int64_t chunk_count;
  int64_t max_unique;  // of the chunks of both directions
  char* scratch;
  float* saved;  // for the gradients (lstm/layout.h), or null
};

// One direction of the gradients: packed for them, one chunk with all unique rows, h and c read only.
struct LstmBackward : LstmDirection {
  const float* grad_output;  // this direction's half, row stride 2P
  float* grad_h;             // likewise
  float* grad_c;             // this direction's half, row stride 2D
  float* grad_inputs;        // row stride as of the inputs; this and what follows may be null
  float* grad_weights;
  float* grad_biases;
  float* grad_projections;
  float* grad_initial_h;
  float* grad_initial_c;
};

struct CharCnnPlan : CharCnnCall {
  const int32_t* lengths;          // [tokens] one past the last character that is no padding
  const int64_t* character_begin;  // [tokens + 1] characters before each token's, of those that windows see
  float* values;                   // forward
  uint32_t* picks;                 // forward writes, backward reads
  const float* grad_values;
  float* grad_table;
  float* scratch;
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
  size_t (*scratch_size)(const LstmDirection&, int team_size);  // of one direction
  void (*run)(const LstmDirection&, Team);
};

struct LstmTrainingEngine {
  size_t (*saved_size)(const LstmShape&, int64_t packed_rows);       // of one direction, as all sizes
  void (*run_saving)(const LstmDirection&, Team);   // LstmEngine::run that fills `saved`
  size_t (*packed_size)(const LstmShape&);
  void (*pack)(const LstmShape&, const LstmWeights&, char* packed);  // no bias
  size_t (*scratch_size)(const LstmDirection&, int team_size);
  void (*run)(const LstmBackward&, Team);
};

// `stages` follow each other; the parts of a stage, as many as the plan has threads, in any order or at the same time.
struct CharCnnPass {
  int stages;
  int64_t (*scratch_floats)(const CharCnnPlan&);
  void (*run)(const CharCnnPlan&, int stage, int part);
};

struct CharCnnEngine {
  CharCnnPass forward, backward;
};

struct LinearEngine {
  size_t (*packed_size)(const LinearShape&);
  void (*pack)(const LinearShape&, const LinearWeights&, char* packed);
  size_t (*scratch_size)(const LinearCall&);  // of one thread
  void (*run)(const LinearCall&, char* scratch, int rank);
};

// A precision on an instruction set.
struct Engine {
  LstmEngine lstm;
  LinearEngine linear;
};

// `features`: the set that the engine's code needs of the processor.
struct Fp32Engine {
  Engine highest, low;
  LstmTrainingEngine training;
  CharCnnEngine char_cnn;
  uint32_t features;
};

struct DotsEngine {
  Engine low;
  uint32_t features;
};

struct AmxEngine {
  Engine high, medium, low;
  uint32_t features;
};

// Constants of engine_isa.cpp: to look one up runs no code of its instruction set. CMake says which are built.
#define ELMO_FAST_FP32_ENGINE(isa, ...) extern const Fp32Engine isa##_engine;
#define ELMO_FAST_DOTS_ENGINE(isa, ...) extern const DotsEngine isa##_engine;
#define ELMO_FAST_TILE_ENGINE(isa, ...) extern const AmxEngine isa##_engine;
ELMO_FAST_LEVELS(ELMO_FAST_FP32_ENGINE, ELMO_FAST_DOTS_ENGINE, ELMO_FAST_TILE_ENGINE)
#undef ELMO_FAST_FP32_ENGINE
#undef ELMO_FAST_DOTS_ENGINE
#undef ELMO_FAST_TILE_ENGINE

// The engines of a level: of training and char-CNN, and by precision, null where there is none. `fp32` is null where
// the build has none for the level.
struct Level {
  const Fp32Engine* fp32;
  const Engine* of[precision_count];
  const uint32_t* features;  // those of the level's own engine
};

const Level& level_of(Isa isa);

// All that a level's engines need; of a level that the build has.
uint32_t needed_features(const Level& level);

// The best level up to `cap` that the build has and a processor with `features` runs. std::runtime_error when the
// processor lacks what the build asks for everywhere.
Isa best_isa(uint32_t features, bool amx_permitted, Isa cap);

// The best level here, at most the one that the environment variable ELMO_FAST_CPU_ISA names. std::invalid_argument
// when it names none.
Isa cpu_isa();

// The engine of a precision; null where the level has none.
const Engine* engine_of(const Level& level, Precision precision);

// The first level with the engine that runs `precision` here: fp32 has no use for AMX. std::invalid_argument when there
// is none or no such precision.
Isa isa_for(Precision precision);

const Fp32Engine& fp32_engine();
const Engine& engine_for(Precision precision);

}  // namespace cpu
}  // namespace elmo_fast
