// Python bindings of csrc/projected_lstm.h: weights are packed in the call that runs on them.
#include "projected_lstm.h"

#include "arguments.h"

namespace elmo_fast {
namespace {

size_t saved_size_of(int64_t input, int64_t dim, int64_t projection, int64_t packed_rows) {
  return lstm_saved_size({input, dim, projection}, packed_rows);
}

// The arguments of every call.
LstmCall lstm_call(Arguments& given) {
  LstmCall call = {};
  given.read("input", call.shape.input, "dim", call.shape.dim, "projection", call.shape.projection);
  given.read("steps", call.steps, "batch_sizes", call.batch_sizes, "packed_rows", call.packed_rows);
  given.read("sequence_start", call.sequence_start, "initial_h", call.initial_h, "initial_c", call.initial_c);
  given.read("slots", call.slots, "h", call.h, "c", call.c);
  given.read("cell_clip", call.cell_clip, "proj_clip", call.proj_clip, "threads", call.threads);
  return call;
}

LstmRows lstm_rows(Arguments& given) {
  LstmRows from = {};
  given.read("inputs", from.inputs, "input_rows", from.input_rows, "rows", from.rows);
  return from;
}

void run_lstm(const py::kwargs& keywords) {
  Arguments given("lstm_forward", keywords);
  LstmCall call = lstm_call(given);
  const LstmRows from = lstm_rows(given);
  const float *weights[2], *biases[2], *projections[2];
  Precision precision;
  void* saved;
  given.read("weights", weights, "biases", biases, "projections", projections);
  given.read("outputs", call.outputs, "precision", precision, "saved", saved);
  given.finish(
      [&] { lstm_forward(lstm_pack(call.shape, precision, weights, biases, projections), call, from, saved); });
}

void run_lstm_backward(const py::kwargs& keywords) {
  Arguments given("lstm_backward", keywords);
  LstmBackwardCall to = {};
  to.forward = lstm_call(given);
  to.from = lstm_rows(given);
  given.read("weights", to.weights, "projections", to.projections, "saved", to.saved, "saved_size", to.saved_size);
  given.read("grad_output", to.grad_output, "grad_h", to.grad_h, "grad_c", to.grad_c);
  given.read("grad_inputs", to.grad_inputs, "grad_weights", to.grad_weights, "grad_biases", to.grad_biases);
  given.read("grad_projections", to.grad_projections);
  given.read("grad_initial_h", to.grad_initial_h, "grad_initial_c", to.grad_initial_c);
  given.finish([&] { lstm_backward(to); });
}

}  // namespace

void bind_lstm(py::module_& m) {
  m.def("lstm_isa", [](int precision) { return lstm_isa(static_cast<Precision>(precision)); }, release());
  m.def("lstm_forward", run_lstm);
  m.def("lstm_saved_size", saved_size_of, release());
  m.def("lstm_backward", run_lstm_backward);
}

}  // namespace elmo_fast
