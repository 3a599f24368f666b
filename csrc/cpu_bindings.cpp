// Python's view of csrc/projected_lstm.h: pointers travel as integers, every call that computes releases the GIL.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>

#include "projected_lstm.h"

namespace py = pybind11;

namespace elmo_fast {
namespace {

using Address = uintptr_t;
using Pair = std::array<Address, 2>;

template <class T>
T* at(Address address) {
  return reinterpret_cast<T*>(address);
}

LstmShape lstm_shape(int64_t input, int64_t dim, int64_t projection) { return {input, dim, projection}; }

LinearShape linear_shape(int64_t input, int64_t output, int epilogue, int precision) {
  return {input, output, static_cast<Epilogue>(epilogue), static_cast<Precision>(precision)};
}

void pack_lstm(int64_t input, int64_t dim, int64_t projection, int precision, Pair weights, Pair biases,
               Pair projections, Address packed, size_t packed_size) {
  const float* w[2] = {at<const float>(weights[0]), at<const float>(weights[1])};
  const float* b[2] = {at<const float>(biases[0]), at<const float>(biases[1])};
  const float* p[2] = {at<const float>(projections[0]), at<const float>(projections[1])};
  lstm_pack(lstm_shape(input, dim, projection), static_cast<Precision>(precision), w, b, p, at<void>(packed),
            packed_size);
}

void run_lstm(int64_t input, int64_t dim, int64_t projection, int precision, Address packed, size_t packed_size,
              Address inputs, int64_t input_rows, bool split_input, int64_t steps, Address live, int64_t step_rows,
              Address rows, Address out_rows, Address reset, Address reset_h, Address reset_c, Address output,
              int64_t output_rows, int64_t lanes, Address h, Address c, float cell_clip, float proj_clip, int threads,
              int64_t chunk_rows, bool multiplied) {
  LstmCall call = {};
  call.shape = lstm_shape(input, dim, projection);
  call.precision = static_cast<Precision>(precision);
  call.packed = at<const void>(packed);
  call.packed_size = packed_size;
  call.inputs = at<const float>(inputs);
  call.input_rows = input_rows;
  call.split_input = split_input;
  call.multiplied = multiplied;
  call.steps = steps;
  call.live = at<const int32_t>(live);
  call.step_rows = step_rows;
  call.rows = at<const int32_t>(rows);
  call.out_rows = at<const int32_t>(out_rows);
  call.reset = at<const uint8_t>(reset);
  call.reset_h = at<const float>(reset_h);
  call.reset_c = at<const float>(reset_c);
  call.output = at<float>(output);
  call.output_rows = output_rows;
  call.lanes = lanes;
  call.h = at<float>(h);
  call.c = at<float>(c);
  call.cell_clip = cell_clip;
  call.proj_clip = proj_clip;
  call.threads = threads;
  call.chunk_rows = chunk_rows;
  lstm_forward(call);
}

void pack_linear(int64_t input, int64_t output, int epilogue, int precision, Address weight, Address bias,
                 Address transform_weight, Address transform_bias, Address packed, size_t packed_size) {
  linear_pack(linear_shape(input, output, epilogue, precision), at<const float>(weight), at<const float>(bias),
              at<const float>(transform_weight), at<const float>(transform_bias), at<void>(packed), packed_size);
}

void run_linear(int64_t input, int64_t output, int epilogue, int precision, Address packed, size_t packed_size,
                Address x, int64_t rows, int64_t x_stride, Address y, int64_t y_stride, int threads) {
  linear_forward({linear_shape(input, output, epilogue, precision), at<const void>(packed), packed_size,
                  at<const float>(x), rows, x_stride, at<float>(y), y_stride, threads});
}

template <void (*Forward)(const float*, float*, int64_t, Precision)>
void map_activation(Address x, Address y, int64_t count, int precision) {
  Forward(at<const float>(x), at<float>(y), count, static_cast<Precision>(precision));
}

void bind_lstm(py::module_& m) {
  m.def("lstm_isa", [](int precision) { return lstm_isa(static_cast<Precision>(precision)); }, py::arg("precision"));
  m.def(
      "lstm_packed_size",
      [](int64_t input, int64_t dim, int64_t projection, int precision) {
        return lstm_packed_size(lstm_shape(input, dim, projection), static_cast<Precision>(precision));
      },
      py::arg("input"), py::arg("dim"), py::arg("projection"), py::arg("precision"));
  m.def("lstm_pack", pack_lstm, py::call_guard<py::gil_scoped_release>(), py::arg("input"), py::arg("dim"),
        py::arg("projection"), py::arg("precision"), py::arg("weights"), py::arg("biases"), py::arg("projections"),
        py::arg("packed"), py::arg("packed_size"));
  m.def("lstm_forward", run_lstm, py::call_guard<py::gil_scoped_release>(), py::kw_only(), py::arg("input"),
        py::arg("dim"), py::arg("projection"), py::arg("precision"), py::arg("packed"), py::arg("packed_size"),
        py::arg("inputs"), py::arg("input_rows"), py::arg("split_input"), py::arg("steps"), py::arg("batch_sizes"),
        py::arg("packed_rows"), py::arg("rows"), py::arg("out_rows"), py::arg("sequence_start") = 0, py::arg("initial_h") = 0,
        py::arg("initial_c") = 0, py::arg("output"), py::arg("output_rows"), py::arg("slots"), py::arg("h"),
        py::arg("c"), py::arg("cell_clip"), py::arg("proj_clip"), py::arg("threads"), py::arg("chunk_rows") = 0,
        py::arg("precomputed") = false);
}

void bind_linear(py::module_& m) {
  m.def(
      "linear_packed_size",
      [](int64_t input, int64_t output, int epilogue, int precision) {
        return linear_packed_size(linear_shape(input, output, epilogue, precision));
      },
      py::arg("input"), py::arg("output"), py::arg("epilogue"), py::arg("precision"));
  m.def("linear_pack", pack_linear, py::call_guard<py::gil_scoped_release>(), py::arg("input"), py::arg("output"),
        py::arg("epilogue"), py::arg("precision"), py::arg("weight"), py::arg("bias"), py::arg("transform_weight"),
        py::arg("transform_bias"), py::arg("packed"), py::arg("packed_size"));
  m.def("linear_forward", run_linear, py::call_guard<py::gil_scoped_release>(), py::kw_only(), py::arg("input"),
        py::arg("output"), py::arg("epilogue"), py::arg("precision"), py::arg("packed"), py::arg("packed_size"),
        py::arg("x"), py::arg("rows"), py::arg("x_stride"), py::arg("y"), py::arg("y_stride"), py::arg("threads"));
  m.def("sigmoid", map_activation<sigmoid_forward>, py::arg("x"), py::arg("y"), py::arg("count"), py::arg("precision"));
  m.def("tanh", map_activation<tanh_forward>, py::arg("x"), py::arg("y"), py::arg("count"), py::arg("precision"));
}

}  // namespace

void bind_cpu(py::module_& m) {
  bind_lstm(m);
  bind_linear(m);
}

}  // namespace elmo_fast
