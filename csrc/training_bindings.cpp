// Python's view of csrc/projected_lstm_training.h and csrc/char_cnn.h, in the manner of cpu_bindings.cpp.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <tuple>
#include <vector>

#include "char_cnn.h"
#include "projected_lstm_training.h"

namespace py = pybind11;

namespace elmo_fast {
namespace {

using Address = uintptr_t;
using Pair = std::array<Address, 2>;

template <class T>
T* at(Address address) {
  return reinterpret_cast<T*>(address);
}

void pack(int64_t input, int64_t dim, int64_t projection, Pair weights, Pair projections, Address packed,
          size_t packed_size) {
  const float* w[2] = {at<const float>(weights[0]), at<const float>(weights[1])};
  const float* p[2] = {at<const float>(projections[0]), at<const float>(projections[1])};
  lstm_backward_pack({input, dim, projection}, w, p, at<void>(packed), packed_size);
}

// Members by name, all but the sizes that every call has.
LstmCall forward_call(const py::dict& values) {
  const auto number = [&values](const char* name) { return values[name].cast<int64_t>(); };
  const auto address = [&values](const char* name) { return values[name].cast<Address>(); };
  LstmCall call = {};
  call.shape = {number("input"), number("dim"), number("projection")};
  call.precision = Precision::highest;
  call.packed = at<const void>(address("packed"));
  call.packed_size = values["packed_size"].cast<size_t>();
  call.inputs = at<const float>(address("inputs"));
  call.input_rows = number("input_rows");
  call.split_input = values["split_input"].cast<bool>();
  call.steps = number("steps");
  call.live = at<const int32_t>(address("batch_sizes"));
  call.step_rows = number("packed_rows");
  call.rows = at<const int32_t>(address("rows"));
  call.reset = at<const uint8_t>(address("sequence_start"));
  call.reset_h = at<const float>(address("initial_h"));
  call.reset_c = at<const float>(address("initial_c"));
  call.lanes = number("slots");
  call.h = at<float>(address("h"));
  call.c = at<float>(address("c"));
  call.cell_clip = values["cell_clip"].cast<float>();
  call.proj_clip = values["proj_clip"].cast<float>();
  call.threads = values["threads"].cast<int>();
  return call;
}

void forward_saving(const py::dict& values, Address output, Address out_rows, Address saved, size_t saved_size) {
  LstmCall call = forward_call(values);
  call.output = at<float>(output);
  call.output_rows = call.step_rows;
  call.out_rows = at<const int32_t>(out_rows);
  const py::gil_scoped_release released;
  lstm_forward_saving(call, at<void>(saved), saved_size);
}

size_t scratch_size(const py::dict& values) { return lstm_backward_scratch_size(forward_call(values)); }

void fill_pair(float* to[2], const Pair& from) {
  for (size_t d = 0; d < 2; ++d) to[d] = at<float>(from[d]);
}

void backward(const py::dict& values, Address saved, size_t saved_size, Address grad_output, Address grad_h,
              Address grad_c, Pair grad_inputs, Pair grad_weights, Pair grad_biases, Pair grad_projections,
              Address grad_reset_h, Address grad_reset_c, Address scratch, size_t scratch_bytes) {
  LstmBackwardCall call = {};
  call.forward = forward_call(values);
  call.saved = at<const void>(saved);
  call.saved_size = saved_size;
  call.grad_output = at<const float>(grad_output);
  call.grad_h = at<float>(grad_h);
  call.grad_c = at<float>(grad_c);
  fill_pair(call.grad_inputs, grad_inputs);
  fill_pair(call.grad_weights, grad_weights);
  fill_pair(call.grad_biases, grad_biases);
  fill_pair(call.grad_projections, grad_projections);
  call.grad_reset_h = at<float>(grad_reset_h);
  call.grad_reset_c = at<float>(grad_reset_c);
  call.scratch = at<void>(scratch);
  call.scratch_size = scratch_bytes;
  const py::gil_scoped_release released;
  lstm_backward(call);
}

// Banks by (width, filters, first column, address of the weight, address of its gradient or 0).
using Bank = std::tuple<int64_t, int64_t, int64_t, Address, Address>;

struct CharCnn {
  std::vector<CharBank> banks;
  CharCnnCall call;
};

CharCnn char_cnn_call(Address ids, int64_t tokens, int64_t characters, int32_t padding, Address table,
                      int64_t table_rows, int64_t dim, const std::vector<Bank>& banks, int threads) {
  CharCnn found = {{}, {at<const int32_t>(ids), tokens, characters, padding, at<const float>(table), table_rows, dim,
                        nullptr, int64_t(banks.size()), 0, threads}};
  for (const auto& [width, filters, first, weight, grad] : banks) {
    found.banks.push_back({width, filters, first, at<const float>(weight), at<float>(grad)});
    found.call.filters += filters;
  }
  found.call.banks = found.banks.data();
  return found;
}

void forward_char_cnn(Address ids, int64_t tokens, int64_t characters, int32_t padding, Address table,
                      int64_t table_rows, int64_t dim, const std::vector<Bank>& banks, int threads, Address values,
                      Address picks) {
  const CharCnn made = char_cnn_call(ids, tokens, characters, padding, table, table_rows, dim, banks, threads);
  const py::gil_scoped_release released;
  char_cnn_forward(made.call, at<float>(values), at<uint32_t>(picks));
}

void backward_char_cnn(Address ids, int64_t tokens, int64_t characters, int32_t padding, Address table,
                       int64_t table_rows, int64_t dim, const std::vector<Bank>& banks, int threads,
                       Address grad_values, Address picks, Address grad_table) {
  const CharCnn made = char_cnn_call(ids, tokens, characters, padding, table, table_rows, dim, banks, threads);
  const py::gil_scoped_release released;
  char_cnn_backward(made.call, at<const float>(grad_values), at<const uint32_t>(picks), at<float>(grad_table));
}

}  // namespace

void bind_training(py::module_& m) {
  m.def(
      "lstm_saved_size",
      [](int64_t input, int64_t dim, int64_t projection, int64_t step_rows) {
        return lstm_saved_size({input, dim, projection}, step_rows);
      },
      py::arg("input"), py::arg("dim"), py::arg("projection"), py::arg("packed_rows"));
  m.def(
      "lstm_backward_packed_size",
      [](int64_t input, int64_t dim, int64_t projection) {
        return lstm_backward_packed_size({input, dim, projection});
      },
      py::arg("input"), py::arg("dim"), py::arg("projection"));
  m.def("lstm_backward_pack", pack, py::call_guard<py::gil_scoped_release>(), py::arg("input"), py::arg("dim"),
        py::arg("projection"), py::arg("weights"), py::arg("projections"), py::arg("packed"), py::arg("packed_size"));
  m.def("lstm_forward_saving", forward_saving, py::arg("call"), py::kw_only(), py::arg("output"), py::arg("out_rows"),
        py::arg("saved"), py::arg("saved_size"));
  m.def("lstm_backward_scratch_size", scratch_size, py::arg("call"));
  m.def("lstm_backward", backward, py::arg("call"), py::kw_only(), py::arg("saved"), py::arg("saved_size"),
        py::arg("grad_output"), py::arg("grad_h"), py::arg("grad_c"), py::arg("grad_inputs"), py::arg("grad_weights"),
        py::arg("grad_biases"), py::arg("grad_projections"), py::arg("grad_initial_h"), py::arg("grad_initial_c"),
        py::arg("scratch"), py::arg("scratch_size"));
  m.def("char_cnn_forward", forward_char_cnn, py::kw_only(), py::arg("ids"), py::arg("tokens"), py::arg("characters"),
        py::arg("padding"), py::arg("table"), py::arg("table_rows"), py::arg("dim"), py::arg("banks"),
        py::arg("threads"), py::arg("values"), py::arg("picks"));
  m.def("char_cnn_backward", backward_char_cnn, py::kw_only(), py::arg("ids"), py::arg("tokens"),
        py::arg("characters"), py::arg("padding"), py::arg("table"), py::arg("table_rows"), py::arg("dim"),
        py::arg("banks"), py::arg("threads"), py::arg("grad_values"), py::arg("picks"), py::arg("grad_table"));
}

}  // namespace elmo_fast
