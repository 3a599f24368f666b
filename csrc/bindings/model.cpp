// Python bindings of csrc/model.h.
#include "model.h"

#include "arguments.h"

namespace elmo_fast {
namespace {

using Highway = std::array<Address, 4>;
using Layer = std::array<Pair, 3>;  // weights, biases, projections

EncoderWeights encoder_of(Arguments& given, const std::vector<CharBank>& banks) {
  EncoderWeights encoder = {};
  CharCnnCall& call = encoder.char_cnn;
  given.read("characters", call.characters, "padding", call.padding, "activation", call.activation);
  given.read("table", call.table, "table_rows", call.table_rows, "char_dim", call.dim, "char_biases", call.biases);
  call.banks = banks.data();
  call.bank_count = int64_t(banks.size());
  for (const CharBank& bank : banks) call.filters += bank.filters;
  for (const auto& [carry, carry_bias, transform, transform_bias] : given.get<std::vector<Highway>>("highways"))
    encoder.highways.push_back({at<const float>(carry), at<const float>(carry_bias), at<const float>(transform),
                                at<const float>(transform_bias)});
  given.read("words", encoder.words, "word_rows", encoder.word_rows, "word_dim", encoder.word_dim);
  given.read("token_projection", encoder.projection, "token_projection_bias", encoder.projection_bias);
  return encoder;
}

StackWeights stack_of(Arguments& given) {
  StackWeights stack = {};
  given.read("dim", stack.dim, "projection", stack.projection, "cell_clip", stack.cell_clip);
  given.read("proj_clip", stack.proj_clip, "skips", stack.skips);
  for (const auto& [weights, biases, projections] : given.get<std::vector<Layer>>("layers")) {
    LayerWeights layer;
    for (size_t d = 0; d < 2; ++d) {
      layer.weights[d] = at<const float>(weights[d]);
      layer.biases[d] = at<const float>(biases[d]);
      layer.projections[d] = at<const float>(projections[d]);
    }
    stack.layers.push_back(layer);
  }
  return stack;
}

std::unique_ptr<Model> make_model(const py::kwargs& keywords) {
  Arguments given("Model", keywords);
  const std::vector<CharBank> banks = char_banks(given);
  const EncoderWeights encoder = banks.empty() ? EncoderWeights{} : encoder_of(given, banks);
  const StackWeights stack = stack_of(given);
  Precision precision;
  given.read("precision", precision);
  return given.finish([&] { return std::make_unique<Model>(banks.empty() ? nullptr : &encoder, stack, precision); });
}

void encode(const Model& model, Address ids, Address word_rows, int64_t tokens, Address vectors, int threads) {
  model.encode(at<const int32_t>(ids), at<const int32_t>(word_rows), tokens, at<float>(vectors), threads);
}

void run(const Model& model, const py::kwargs& keywords) {
  Arguments given("run", keywords);
  ModelCall call = {};
  given.read("vectors", call.vectors, "vector_count", call.vector_count, "rows", call.rows, "steps", call.steps);
  given.read("batch_sizes", call.batch_sizes, "packed_rows", call.packed_rows);
  given.read("sequence_start", call.sequence_start, "initial_h", call.initial_h, "initial_c", call.initial_c);
  given.read("outputs", call.outputs, "slots", call.slots, "h", call.h, "c", call.c, "threads", call.threads);
  given.finish([&] { model.run(call); });
}

}  // namespace

void bind_model(py::module_& m) {
  py::class_<Model>(m, "Model")
      .def(py::init(&make_model))
      .def("encode", encode, release())
      .def("run", run)
      .def_property_readonly("size", &Model::size);
}

}  // namespace elmo_fast
