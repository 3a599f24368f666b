// Python bindings of csrc/linear.h: weights are packed in the call that multiplies by them.
#include "linear.h"

#include "arguments.h"

namespace elmo_fast {
namespace {

using namespace py::literals;

void run_linear(const py::kwargs& keywords) {
  Arguments given("linear_forward", keywords);
  LinearCall call = {};
  given.read("input", call.shape.input, "output", call.shape.output, "epilogue", call.shape.epilogue);
  given.read("precision", call.shape.precision, "x", call.x, "rows", call.rows, "y", call.y, "threads", call.threads);
  const auto [weight, bias, transform, transform_bias] = given.get<std::array<Address, 4>>("weights");  // 0: none
  const float* const of[] = {at<const float>(weight), at<const float>(bias), at<const float>(transform),
                             at<const float>(transform_bias)};
  given.finish([&] { linear_forward(linear_pack(call.shape, of[0], of[1], of[2], of[3]), call); });
}

}  // namespace

void bind_linear(py::module_& m) {
  py::dict precisions;
  for (const auto& [precision, name] : precision_names) precisions[name] = static_cast<int>(precision);
  m.attr("precisions") = precisions;  // name -> number
  m.attr("epilogues") =
      py::dict("none"_a = static_cast<int>(Epilogue::none), "highway"_a = static_cast<int>(Epilogue::highway));
  m.def("linear_forward", run_linear);
}

}  // namespace elmo_fast
