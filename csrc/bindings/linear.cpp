// Python's view of csrc/linear.h.
#include "linear.h"

#include "arguments.h"

namespace elmo_fast {
namespace {

LinearShape shape_of(int64_t input, int64_t output, int epilogue, int precision) {
  return {input, output, static_cast<Epilogue>(epilogue), static_cast<Precision>(precision)};
}

size_t packed_size_of(int64_t input, int64_t output, int epilogue, int precision) {
  return linear_packed_size(shape_of(input, output, epilogue, precision));
}

void pack(int64_t input, int64_t output, int epilogue, int precision, Address weight, Address bias,
          Address transform_weight, Address transform_bias, Address packed, size_t packed_size) {
  linear_pack(shape_of(input, output, epilogue, precision), at<const float>(weight), at<const float>(bias),
              at<const float>(transform_weight), at<const float>(transform_bias), at<void>(packed), packed_size);
}

void forward(const py::kwargs& keywords) {
  Arguments given("linear_forward", keywords);
  LinearCall call = {};
  given.read("input", call.shape.input, "output", call.shape.output, "epilogue", call.shape.epilogue);
  given.read("precision", call.shape.precision, "packed", call.packed, "packed_size", call.packed_size);
  given.read("x", call.x, "rows", call.rows, "x_stride", call.x_stride, "y", call.y, "y_stride", call.y_stride);
  given.read("threads", call.threads);
  given.finish([&] { linear_forward(call); });
}

template <void (*Function)(const float*, float*, int64_t, Precision)>
void map_activation(Address x, Address y, int64_t count, int precision) {
  Function(at<const float>(x), at<float>(y), count, static_cast<Precision>(precision));
}

}  // namespace

void bind_linear(py::module_& m) {
  using release = py::call_guard<py::gil_scoped_release>;
  m.def("linear_packed_size", packed_size_of, release());
  m.def("linear_pack", pack, release());
  m.def("linear_forward", forward);
  m.def("sigmoid", map_activation<sigmoid_forward>, release());
  m.def("tanh", map_activation<tanh_forward>, release());
}

}  // namespace elmo_fast
