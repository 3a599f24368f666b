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
  const int32_t* unique_rows;   // rows of `inputs`, chunk by chunk
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

struct CharCnnPass {
  int64_t (*scratch_floats)(const CharCnnPlan&);
  void (*run)(const CharCnnPlan&, Team);
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
struct Fp32Engine : Engine {
  LstmTrainingEngine training;
  CharCnnEngine char_cnn;
  uint32_t features;
};

struct AmxEngine {
  Engine high;
  Engine medium;
  uint32_t features;
};

// Constants of engine_isa.cpp: to look one up runs no code of its instruction set.
extern const Fp32Engine generic_engine;
extern const Fp32Engine neon_engine;
extern const Fp32Engine avx2_engine;
extern const Fp32Engine avx512_engine;
extern const AmxEngine amx_engine;
extern const AmxEngine amx_emulated_engine;

// The engines of a level; null where the build has none for it. Without `bf16` a level has fp32 alone.
struct Level {
  const Fp32Engine* fp32;
  const AmxEngine* bf16;
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

// The level whose engine runs `precision`: fp32 has no use for AMX. std::invalid_argument when there is none or no such
// precision.
Isa isa_for(Precision precision);

const Fp32Engine& fp32_engine();
const Engine& engine_for(Precision precision);

// What packed weights and what a forward saves begin with: op, instruction set, precision and sizes in words. They come
// as plain bytes, and those of another layout would be read out of bounds.
struct Label {
  char text[128];
  Label(const char* op, Precision precision, int64_t first, int64_t second, int64_t third);
};

// std::invalid_argument unless it `holds`.
void require(bool holds, const char* what);

void check_threads(int threads);

// The same unless all values lie in [low, high).
void check_range(const int32_t* values, int64_t count, int64_t low, int64_t high, const char* name);

// The same unless `packed` is aligned to 4 bytes and holds a label and `payload` bytes.
void check_buffer(const void* packed, size_t size, size_t payload);

// check_buffer, then puts `label` where packed weights begin. What is read at every step had better lie in huge pages:
// asks for them, which comes before the first write.
void begin_packed(void* packed, size_t size, size_t payload, const Label& label);

// check_buffer, and the buffer begins with `label`.
void check_packed(const void* packed, size_t size, size_t payload, const Label& label);

}  // namespace cpu
}  // namespace elmo_fast
