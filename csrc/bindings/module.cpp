// The native module: Python's view of the CPU engine's contracts, then what the CPU and the build are.
#include <tuple>

#include "arguments.h"
#include "char_cnn.h"
#include "cpu/engine.h"
#include "projected_lstm.h"

namespace elmo_fast {

void bind_cuda(py::module_& m);

namespace {

using release = py::call_guard<py::gil_scoped_release>;

// ---- projected_lstm.h

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

// What a forward and its gradients have in common.
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
  given.read_optional("chunk_rows", call.chunk_rows, "precomputed", call.precomputed);
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

// ---- linear.h

LinearShape linear_shape(int64_t input, int64_t output, int epilogue, int precision) {
  return {input, output, static_cast<Epilogue>(epilogue), static_cast<Precision>(precision)};
}

size_t linear_packed_size_of(int64_t input, int64_t output, int epilogue, int precision) {
  return linear_packed_size(linear_shape(input, output, epilogue, precision));
}

void pack_linear(int64_t input, int64_t output, int epilogue, int precision, Address weight, Address bias,
                 Address transform_weight, Address transform_bias, Address packed, size_t packed_size) {
  linear_pack(linear_shape(input, output, epilogue, precision), at<const float>(weight), at<const float>(bias),
              at<const float>(transform_weight), at<const float>(transform_bias), at<void>(packed), packed_size);
}

void run_linear(const py::kwargs& keywords) {
  Arguments given("linear_forward", keywords);
  LinearCall call = {};
  given.read("input", call.shape.input, "output", call.shape.output, "epilogue", call.shape.epilogue);
  given.read("precision", call.shape.precision, "packed", call.packed, "packed_size", call.packed_size);
  given.read("x", call.x, "rows", call.rows, "x_stride", call.x_stride, "y", call.y, "y_stride", call.y_stride);
  given.read("threads", call.threads);
  given.finish([&] { linear_forward(call); });
}

void bind_linear(py::module_& m) {
  m.def("linear_packed_size", linear_packed_size_of, release());
  m.def("linear_pack", pack_linear, release());
  m.def("linear_forward", run_linear);
}

// ---- char_cnn.h

// (width, filters, first column, address of the weight, address of its gradient or 0)
using Bank = std::tuple<int64_t, int64_t, int64_t, Address, Address>;

std::vector<CharBank> banks_of(Arguments& given) {
  std::vector<CharBank> banks;
  for (const auto& [width, filters, first, weight, grad] : given.get<std::vector<Bank>>("banks"))
    banks.push_back({width, filters, first, at<const float>(weight), at<float>(grad)});
  return banks;
}

// What a forward and its gradients have in common; points to `banks`.
CharCnnCall char_cnn_call(Arguments& given, const std::vector<CharBank>& banks) {
  CharCnnCall call = {};
  given.read("ids", call.ids, "tokens", call.tokens, "characters", call.characters, "padding", call.padding);
  given.read("table", call.table, "table_rows", call.table_rows, "dim", call.dim, "threads", call.threads);
  call.banks = banks.data();
  call.bank_count = int64_t(banks.size());
  for (const CharBank& bank : banks) call.filters += bank.filters;
  return call;
}

void run_char_cnn(const py::kwargs& keywords) {
  Arguments given("char_cnn_forward", keywords);
  const std::vector<CharBank> banks = banks_of(given);
  const CharCnnCall call = char_cnn_call(given, banks);
  float* values;
  uint32_t* picks;
  given.read("values", values, "picks", picks);
  given.finish([&] { char_cnn_forward(call, values, picks); });
}

void run_char_cnn_backward(const py::kwargs& keywords) {
  Arguments given("char_cnn_backward", keywords);
  const std::vector<CharBank> banks = banks_of(given);
  const CharCnnCall call = char_cnn_call(given, banks);
  const float* grad_values;
  const uint32_t* picks;
  float* grad_table;
  given.read("grad_values", grad_values, "picks", picks, "grad_table", grad_table);
  given.finish([&] { char_cnn_backward(call, grad_values, picks, grad_table); });
}

void bind_char_cnn(py::module_& m) {
  m.def("char_cnn_forward", run_char_cnn);
  m.def("char_cnn_backward", run_char_cnn_backward);
}

// ---- the CPU and the build

py::dict features_in(uint32_t set) {
  py::dict features;
  for (int k = 0; k < feature_count; ++k) features[feature_name(k)] = py::bool_(set >> k & 1);
  return features;
}

py::dict engines() {
  py::dict engines;
  for (int k = 0; k < isa_count; ++k) {
    const Isa isa = static_cast<Isa>(k);
    if (const cpu::Level& level = cpu::level_of(isa); level.fp32)
      engines[isa_name(isa)] = features_in(cpu::needed_features(level));
  }
  return engines;
}

void bind_cpu(py::module_& m) {
  m.def(
      "cpu_features", [] { return features_in(cpu_feature_set()); },
      "Feature of x86 -> whether the CPU has it and the operating system keeps its registers.");
  m.def("engines", engines, "Level of this build -> feature -> whether its engines need it.");
  m.def("amx_permitted", amx_permitted,
        "Whether this process may use AMX tile data; the first call asks the operating system.");
  m.def(
      "cpu_isa", [] { return isa_name(cpu::cpu_isa()); },
      "Best usable of generic, neon, avx2, avx512, amx, at most the one in ELMO_FAST_CPU_ISA.");
  m.def("use_openmp_threads", cpu::use_openmp_threads,
        "Run on the threads of the OpenMP runtime that this process has loaded; whether there is one.");
  m.def("threads_are_openmp", cpu::threads_are_openmp, "Whether they are those of an OpenMP runtime.");
}

void bind_build(py::module_& m) {
#ifdef ELMO_FAST_HAS_CUDA
  m.attr("has_cuda") = true;
  m.attr("cuda_skipped") = py::none();  // why the CUDA kernels were not built
#else
  m.attr("has_cuda") = false;
  m.attr("cuda_skipped") = ELMO_FAST_NO_CUDA_REASON;
#endif
}

}  // namespace
}  // namespace elmo_fast

PYBIND11_MODULE(_native, m) {
  using namespace elmo_fast;
  m.doc() = "Native kernels of elmo_fast: raw pointers in and out, nothing of PyTorch.";
  bind_build(m);
  bind_cpu(m);
  bind_lstm(m);
  bind_linear(m);
  bind_char_cnn(m);
  bind_cuda(m);
}
