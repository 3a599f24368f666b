// The interface of an instruction set's engine: plain structs and function pointers, nothing inline.
#pragma once

#include <string>

#include "../char_cnn.h"
#include "../linear.h"
#include "../projected_lstm.h"
#include "isa.h"
#include "threads/threads.h"

namespace elmo_fast {
namespace cpu {

// A thread's rank among the threads that share a direction.
struct Team {
  int rank;
  int size;
  Barrier* barrier;
};

// Steps whose input projections are computed together, once per unique input.
struct Chunk {
  int64_t step_begin;
  int64_t step_end;
  int64_t unique_begin;  // into LstmDirection::unique_inputs
  int64_t unique_count;
};

// One direction of a call, without trailing empty steps and slots that never run. Pointers of the call point to this
// direction's half; if both halves are in the same rows, the row stride is that of both.
struct LstmDirection : LstmCall {
  const char* weights;          // packed
  const int64_t* row_begin;     // [steps] first packed row of each step
  const float* const* unique_inputs;  // addresses of the unique inputs, by chunk
  const int32_t* unique_index;  // [S] index of a packed row's input among its chunk's unique inputs
  const float* const* added;    // [S] addresses of what is added to an output, or null
  const Chunk* chunks;
  int64_t chunk_count;
  int64_t max_unique;  // most unique inputs of a chunk, over both directions
  char* scratch;
  float* saved;  // saved activations (lstm/layout.h), or null
};

// One direction of the gradients: weights packed for gradients, a single chunk with all unique inputs, h and c read
// only.
struct LstmBackward : LstmDirection {
  const float* grad_output;  // this direction's half, row stride 2P
  float* grad_h;             // likewise
  float* grad_c;             // this direction's half, row stride 2D
  const float* inputs;       // the first row
  float* grad_inputs;        // laid out as the inputs; this and the following may be null
  float* grad_weights;
  float* grad_biases;
  float* grad_projections;
  float* grad_initial_h;
  float* grad_initial_c;
};

struct CharCnnPlan : CharCnnCall {
  const int32_t* lengths;          // [tokens] number of characters before trailing padding
  const int64_t* character_begin;  // [tokens + 1] first character vector of every token
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
  size_t (*packed_size)(const LstmShape&);  // per direction
  void (*pack)(const LstmShape&, const LstmWeights&, char* packed);
  size_t (*scratch_size)(const LstmDirection&, int team_size);  // per direction
  void (*run)(const LstmDirection&, Team);
};

struct LstmTrainingEngine {
  size_t (*saved_size)(const LstmShape&, int64_t packed_rows);       // all sizes are per direction
  size_t (*packed_size)(const LstmShape&);
  void (*pack)(const LstmShape&, const LstmWeights&, char* packed);  // no bias
  size_t (*scratch_size)(const LstmDirection&, int team_size);
  void (*run)(const LstmBackward&, Team);
};

// Stages run in order. The parts of a stage, as many as the plan has threads, run in any order or concurrently.
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
  size_t (*scratch_size)(const LinearCall&);  // per thread
  void (*run)(const LinearCall&, char* scratch, int rank);
};

// The functions of a precision on an instruction set.
struct Engine {
  LstmEngine lstm;
  LinearEngine linear;
};

// The functions of an instruction set; null where it has none of its own.
struct Engines {
  Engine of[precision_count];
  LstmTrainingEngine training;
  CharCnnEngine char_cnn;
  uint32_t features;  // those that the functions need of a processor

  constexpr Engine& operator[](Precision precision) { return of[static_cast<int>(precision)]; }
  constexpr const Engine& operator[](Precision precision) const { return of[static_cast<int>(precision)]; }
};

// A level computes with the first of its engines that has a function.
struct Level {
  Isa isa;
  const char* name;
  const Engines* engines[3];  // its own first; null beyond the last, and for those that CMake left out
};

const Level& level_of(Isa isa);

// The level with this name. Throws std::invalid_argument if there is none.
Isa isa_named(const std::string& name);

// The engines of a level for training and the char-CNN; null if the level is not built.
const Engines* fp32_engines(const Level& level);

// All features that the engines of a built level need.
uint32_t needed_features(const Level& level);

// The best built level up to `cap` that a processor can run. Throws std::runtime_error if it lacks features that the
// whole build needs.
Isa best_isa(const Processor& cpu, Isa cap);

// The best level on this machine, at most the level named by the environment variable ELMO_FAST_CPU_ISA. Throws
// std::invalid_argument if the variable names no level.
Isa cpu_isa();

// The engine of a precision; null if the level has none.
const Engine* engine_of(const Level& level, Precision precision);

// The first level with the engine that runs `precision` on this machine (fp32 does not use AMX). Throws
// std::invalid_argument if there is none, or for an invalid precision.
Isa isa_for(Precision precision);

const Engines& fp32_engines();
const Engine& engine_for(Precision precision);

}  // namespace cpu
}  // namespace elmo_fast
