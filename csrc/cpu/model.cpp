// The model of model.h: packs every op's weights, and calls the ops one after another.
#include "../model.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "packed.h"
#include "threads/threads.h"

namespace elmo_fast {

using namespace cpu;

constexpr int64_t tokens_at_once = 2048;  // encoded, so that activations stay in the processor's caches

struct Product {
  LinearShape shape;
  PackedLinear packed;

  Product(const LinearShape& of, const HighwayWeights& w)
      : shape(of), packed(linear_pack(of, w.carry, w.carry_bias, w.transform, w.transform_bias)) {}
};

static std::vector<float> copied(const float* values, int64_t count) { return {values, values + count}; }

// The char encoder. The char-CNN reads its weights as they are.
class Encoder {
 public:
  Encoder(const EncoderWeights& from, int64_t outputs, Precision precision)
      : call_(from.char_cnn), banks_(call_.banks, call_.banks + call_.bank_count),
        table_(copied(call_.table, call_.table_rows * call_.dim)), biases_(copied(call_.biases, call_.filters)),
        words_(copied(from.words, from.words ? from.word_rows * from.word_dim : 0)),
        word_dim_(from.words ? from.word_dim : 0), word_rows_(from.word_rows), outputs_(outputs) {
    for (CharBank& bank : banks_) {
      filters_.push_back(copied(bank.weight, bank.width * call_.dim * bank.filters));
      bank.weight = filters_.back().data();
    }
    call_.banks = banks_.data();
    call_.table = table_.data();
    call_.biases = biases_.data();
    for (const HighwayWeights& weights : from.highways)
      highways_.emplace_back(LinearShape{call_.filters, call_.filters, Epilogue::highway, precision}, weights);
    if (from.projection)
      projection_.emplace_back(LinearShape{word_dim_ + call_.filters, outputs, Epilogue::none, precision},
                               HighwayWeights{from.projection, from.projection_bias, nullptr, nullptr});
    require(from.projection || word_dim_ + call_.filters == outputs, "projection: expected one, as the sizes differ");
  }

  size_t size() const {
    size_t floats = table_.size() + biases_.size() + words_.size(), bytes = 0;
    for (const auto& filter : filters_) floats += filter.size();
    for (const auto* products : {&highways_, &projection_})
      for (const Product& product : *products) bytes += product.packed.size;
    return bytes + floats * sizeof(float);
  }

  // At most tokens_at_once tokens.
  void encode(const int32_t* ids, const int32_t* word_rows, int64_t tokens, float* vectors, int threads) const {
    const size_t values = size_t(tokens * (word_dim_ + call_.filters));
    std::vector<float> a(values), b(values);
    CharCnnCall call = call_;
    call.ids = ids;
    call.tokens = tokens;
    call.threads = threads;
    char_cnn_forward(call, a.data(), nullptr);
    for (const Product& highway : highways_) {
      multiply(highway, a.data(), tokens, b.data(), threads);
      std::swap(a, b);
    }
    if (word_dim_) {
      join(a.data(), word_rows, tokens, b.data());
      std::swap(a, b);
    }
    if (projection_.empty()) std::copy_n(a.data(), tokens * outputs_, vectors);
    else multiply(projection_[0], a.data(), tokens, vectors, threads);
  }

  int64_t characters() const { return call_.characters; }
  int64_t outputs() const { return outputs_; }

 private:
  static void multiply(const Product& by, const float* x, int64_t rows, float* y, int threads) {
    linear_forward(by.packed, {by.shape, nullptr, x, rows, y, threads});
  }

  // The word's vector in front of the filters' values.
  void join(const float* values, const int32_t* word_rows, int64_t tokens, float* to) const {
    require(word_rows, "word_rows: expected a row for each token");
    check_range(word_rows, tokens, 0, word_rows_, "word_rows");
    for (int64_t k = 0; k < tokens; ++k) {
      to = std::copy_n(words_.data() + word_rows[k] * word_dim_, word_dim_, to);
      to = std::copy_n(values + k * call_.filters, call_.filters, to);
    }
  }

  CharCnnCall call_;
  std::vector<CharBank> banks_;
  std::vector<std::vector<float>> filters_;
  const std::vector<float> table_, biases_, words_;
  const int64_t word_dim_, word_rows_, outputs_;
  std::vector<Product> highways_, projection_;
};

struct Model::Parts {
  std::unique_ptr<const Encoder> encoder;
  LstmShape shape;
  Precision precision;
  float cell_clip, proj_clip;
  bool skips;
  std::vector<PackedLstm> layers;
};

Model::Model(const EncoderWeights* encoder, const StackWeights& stack, Precision precision)
    : parts_(new Parts{nullptr,
                       {stack.projection, stack.dim, stack.projection},
                       precision,
                       stack.cell_clip,
                       stack.proj_clip,
                       stack.skips,
                       {}}) {
  if (encoder) parts_->encoder = std::make_unique<Encoder>(*encoder, stack.projection, precision);
  for (const LayerWeights& layer : stack.layers)
    parts_->layers.push_back(lstm_pack(parts_->shape, precision, layer.weights, layer.biases, layer.projections));
}

Model::~Model() = default;

void Model::encode(const int32_t* ids, const int32_t* word_rows, int64_t tokens, float* vectors, int threads) const {
  require(parts_->encoder != nullptr, "ids: expected none, since this model has no char encoder");
  const Encoder& encoder = *parts_->encoder;
  for (int64_t k = 0; k < tokens; k += tokens_at_once)
    encoder.encode(ids + k * encoder.characters(), word_rows ? word_rows + k : nullptr,
                   std::min(tokens_at_once, tokens - k), vectors + k * encoder.outputs(), threads);
}

void Model::run(const ModelCall& call) const {
  const Parts& parts = *parts_;
  const int64_t h_row = 2 * parts.shape.projection, c_row = 2 * parts.shape.dim;
  LstmCall layer = {};
  layer.shape = parts.shape;
  layer.steps = call.steps;
  layer.batch_sizes = call.batch_sizes;
  layer.packed_rows = call.packed_rows;
  layer.sequence_start = call.sequence_start;
  layer.slots = call.slots;
  layer.cell_clip = parts.cell_clip;
  layer.proj_clip = parts.proj_clip;
  layer.threads = call.threads;
  for (int64_t l = 0; l < int64_t(parts.layers.size()); ++l) {
    const PackedLstm& packed = parts.layers[size_t(l)];
    layer.initial_h = call.initial_h ? call.initial_h + l * h_row : nullptr;
    layer.initial_c = call.initial_c ? call.initial_c + l * c_row : nullptr;
    layer.h = call.h + l * call.slots * h_row;
    layer.c = call.c + l * call.slots * c_row;
    layer.outputs = call.outputs + l * 2 * call.packed_rows;
    if (l == 0) lstm_forward(packed, layer, LstmRows{call.vectors, call.vector_count, call.rows});
    else lstm_forward(packed, layer, LstmAddresses{layer.outputs - 2 * call.packed_rows, parts.skips});
  }
}

size_t Model::size() const {
  size_t bytes = parts_->encoder ? parts_->encoder->size() : 0;
  for (const PackedLstm& packed : parts_->layers) bytes += packed.size;
  return bytes;
}

}  // namespace elmo_fast
