// A biLM for inference: its weights, packed for this processor in one precision. Immutable; threads may share a model.
//
// Numbers are those of the ops below (char_cnn.h, linear.h, projected_lstm.h), to the bit.
#pragma once

#include <memory>
#include <vector>

#include "char_cnn.h"
#include "linear.h"
#include "projected_lstm.h"

namespace elmo_fast {

// fp32 weights in bilm-tf's layout. The constructor reads them, and does not keep the memory.
struct HighwayWeights {
  const float *carry, *carry_bias, *transform, *transform_bias;  // [F, F], [F], [F, F], [F]
};

// Character ids to token vectors. `char_cnn` has everything but ids, tokens and threads; its filters are F together.
struct EncoderWeights {
  CharCnnCall char_cnn;
  std::vector<HighwayWeights> highways;
  const float* words;  // [word_rows, word_dim], put in front of the filters (ELMoForManyLangs); null: none
  int64_t word_rows;
  int64_t word_dim;
  const float* projection;  // [word_dim + F, P]; null: none, then word_dim + F == P
  const float* projection_bias;  // [P]
};

struct LayerWeights {
  const float *weights[2], *biases[2], *projections[2];  // as of lstm_pack
};

// The LSTM. Layers above the first add their input to their output with `skips`.
struct StackWeights {
  int64_t dim;
  int64_t projection;
  std::vector<LayerWeights> layers;
  float cell_clip;  // > 0, +inf: none
  float proj_clip;
  bool skips;
};

// All layers over a schedule of steps; the fields without a comment are those of LstmCall.
struct ModelCall {
  const float* vectors;  // [vector_count, P] of tokens
  int64_t vector_count;
  const int32_t* rows;  // [2, S] row of `vectors` that each direction reads
  int64_t steps;
  const int32_t* batch_sizes;
  int64_t packed_rows;
  const uint8_t* sequence_start;
  const float* initial_h;  // [L, 2P] or null (zeros)
  const float* initial_c;  // [L, 2D] or null
  float* const* outputs;  // [L, 2, S], no address null
  int64_t slots;
  float* h;  // [L, slots, 2P]
  float* c;  // [L, slots, 2D]
  int threads;
};

class Model {
 public:
  // `encoder` is null for a model whose token vectors come from elsewhere. Throws std::invalid_argument for a precision
  // that this machine lacks.
  Model(const EncoderWeights* encoder, const StackWeights& stack, Precision precision);
  ~Model();
  Model(const Model&) = delete;

  // ids [tokens, characters]; word_rows [tokens] rows of `words`, or null -> vectors [tokens, P]. Throws
  // std::invalid_argument for ids out of range.
  void encode(const int32_t* ids, const int32_t* word_rows, int64_t tokens, float* vectors, int threads) const;

  // Throws std::invalid_argument on rows or batch sizes that do not fit; the caller checks the rest.
  void run(const ModelCall& call) const;

  // Bytes of all weights.
  size_t size() const;

 private:
  struct Parts;
  const std::unique_ptr<Parts> parts_;
};

}  // namespace elmo_fast
