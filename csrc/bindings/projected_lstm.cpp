// Python bindings of csrc/projected_lstm.h.
#include "projected_lstm.h"

#include "arguments.h"

namespace elmo_fast {
namespace {

size_t lstm_packed_size_of(int64_t input, int64_t dim, int64_t projection, int precision) {
  return lstm_packed_size({input, dim, projection}, static_cast<Precision>(precision));
}

void pack_lstm(int64_t input, int64_t dim, int64_t projection, int precision, const Pair& weights, const Pair& biases,
               const Pair& projections, Address packed, size_t packed_size) {
  lstm_pack({input, dim, projection}, static_cast<Precision>(precision), Pointers<const float>(weights).of,
            Pointers<const float>(biases).of, Pointers<const float>(projections).of, at<void>(packed), packed_size);
}

size_t saved_size_of(int64_t input, int64_t dim, int64_t projection, int64_t packed_rows) {
  return lstm_saved_size({input, dim, projection}, packed_rows);
}

size_t backward_packed_size_of(int64_t input, int64_t dim, int64_t projection) {
  return lstm_backward_packed_size({input, dim, projection});
}

void pack_backward(int64_t input, int64_t dim, int64_t projection, const Pair& weights, const Pair& projections,
                   Address packed, size_t packed_size) {
  lstm_backward_pack({input, dim, projection}, Pointers<const float>(weights).of, Pointers<const float>(projections).of,
                     at<void>(packed), packed_size);
}

// The arguments shared by a forward and its gradients.
LstmCall lstm_call(Arguments& given) {
  LstmCall call = {};
  given.read("input", call.shape.input, "dim", call.shape.dim, "projection", call.shape.projection);
  given.read("packed", call.packed, "packed_size", call.packed_size);
  given.read("inputs", call.inputs, "input_rows", call.input_rows, "split_input", call.split_input);
  given.read("steps", call.steps, "batch_sizes", call.batch_sizes, "packed_rows", call.packed_rows, "rows", call.rows);
  given.read_optional("sequence_start", call.sequence_start, "initial_h", call.initial_h, "initial_c", call.initial_c);
  given.read("slots", call.slots, "h", call.h, "c", call.c);
  given.read("cell_clip", call.cell_clip, "proj_clip", call.proj_clip, "threads", call.threads);
  return call;
}

void run_lstm(const py::kwargs& keywords) {
  Arguments given("lstm_forward", keywords);
  LstmCall call = lstm_call(given);
  given.read("precision", call.precision, "out_rows", call.out_rows);
  given.read("output", call.output, "output_rows", call.output_rows);
  given.read_optional("inputs_at", call.inputs_at, "outputs_at", call.outputs_at, "add_input", call.add_input);
  given.read_optional("chunk_rows", call.chunk_rows);
  given.finish([&] { lstm_forward(call); });
}

void run_lstm_saving(const py::kwargs& keywords) {
  Arguments given("lstm_forward_saving", keywords);
  LstmCall forward = lstm_call(given);
  void* saved;
  size_t saved_size;
  given.read("output", forward.output, "out_rows", forward.out_rows, "saved", saved, "saved_size", saved_size);
  forward.output_rows = forward.packed_rows;
  given.finish([&] { lstm_forward_saving(forward, saved, saved_size); });
}

size_t backward_scratch_size_of(const py::kwargs& keywords) {
  Arguments given("lstm_backward_scratch_size", keywords);
  const LstmCall forward = lstm_call(given);
  return given.finish([&] { return lstm_backward_scratch_size(forward); });
}

void run_lstm_backward(const py::kwargs& keywords) {
  Arguments given("lstm_backward", keywords);
  LstmBackwardCall to = {};
  to.forward = lstm_call(given);
  given.read("saved", to.saved, "saved_size", to.saved_size);
  given.read("grad_output", to.grad_output, "grad_h", to.grad_h, "grad_c", to.grad_c);
  given.read("grad_inputs", to.grad_inputs, "grad_weights", to.grad_weights, "grad_biases", to.grad_biases);
  given.read("grad_projections", to.grad_projections);
  given.read("grad_initial_h", to.grad_initial_h, "grad_initial_c", to.grad_initial_c);
  given.read("scratch", to.scratch, "scratch_size", to.scratch_size);
  given.finish([&] { lstm_backward(to); });
}

}  // namespace

void bind_lstm(py::module_& m) {
  m.def("lstm_isa", [](int precision) { return lstm_isa(static_cast<Precision>(precision)); }, release());
  m.def("lstm_packed_size", lstm_packed_size_of, release());
  m.def("lstm_pack", pack_lstm, release());
  m.def("lstm_forward", run_lstm);
  m.def("lstm_saved_size", saved_size_of, release());
  m.def("lstm_forward_saving", run_lstm_saving);
  m.def("lstm_backward_packed_size", backward_packed_size_of, release());
  m.def("lstm_backward_pack", pack_backward, release());
  m.def("lstm_backward_scratch_size", backward_scratch_size_of);
  m.def("lstm_backward", run_lstm_backward);
}

}  // namespace elmo_fast
