// Python bindings of csrc/linear.h.
#include "linear.h"

#include "arguments.h"

namespace elmo_fast {
namespace {

using namespace py::literals;

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
  given.read("x", call.x, "rows", call.rows, "y", call.y, "threads", call.threads);
  given.finish([&] { linear_forward(call); });
}

}  // namespace

void bind_linear(py::module_& m) {
  py::dict precisions;
  for (const auto& [precision, name] : precision_names) precisions[name] = static_cast<int>(precision);
  m.attr("precisions") = precisions;  // name -> number
  m.attr("epilogues") =
      py::dict("none"_a = static_cast<int>(Epilogue::none), "highway"_a = static_cast<int>(Epilogue::highway));
  m.def("linear_packed_size", linear_packed_size_of, release());
  m.def("linear_pack", pack_linear, release());
  m.def("linear_forward", run_linear);
}

}  // namespace elmo_fast
