// Python's view of csrc/projected_lstm_cuda.h: pointers travel as integers. The plan needs no CUDA.
#include "projected_lstm_cuda.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <type_traits>

namespace py = pybind11;
using namespace py::literals;

namespace elmo_fast {
namespace {

using DeviceTuple = std::array<int64_t, 5>;  // processors, shared, clusters of 8, 4 and 2

cuda::Device device_of(const DeviceTuple& d) {
  return {int32_t(d[0]), d[1], {int32_t(d[2]), int32_t(d[3]), int32_t(d[4])}};
}

py::dict plan_lstm(int32_t dim, int32_t projection, const DeviceTuple& device, int32_t slots) {
  const cuda::Plan plan = cuda::plan_persistent(dim, projection, device_of(device), slots);
  return py::dict("units_per_block"_a = plan.units_per_block, "blocks"_a = plan.blocks, "cluster"_a = plan.cluster,
                  "shared_steps"_a = plan.shared_steps, "shared_bytes"_a = plan.shared_bytes,
                  "scratch_bytes"_a = plan.scratch_bytes, "resident_bytes"_a = plan.resident_bytes,
                  "streamed_bytes"_a = plan.streamed_bytes, "reason"_a = plan.reason);
}

#ifdef ELMO_FAST_HAS_CUDA

// Field by field from the keyword arguments of the same names.
void run_lstm(const py::kwargs& given) {
  cuda::Call call = {};
  const auto set = [&](const char* name, auto& field) {
    using Field = std::remove_reference_t<decltype(field)>;
    if constexpr (std::is_pointer_v<Field>) field = reinterpret_cast<Field>(given[name].cast<uintptr_t>());
    else field = given[name].cast<Field>();
  };
  set("dim", call.dim), set("projection", call.projection);
  call.device = device_of(given["device"].cast<DeviceTuple>());
  call.operand = static_cast<cuda::Operand>(given["operand"].cast<int32_t>());
  set("packed", call.packed), set("z", call.z), set("scale", call.scale);
  set("steps", call.steps), set("slots", call.slots), set("stride", call.stride);
  set("meta", call.meta), set("packed_rows", call.packed_rows), set("batch_sizes", call.batch_sizes);
  set("initial_h", call.initial_h), set("initial_c", call.initial_c), set("h_in", call.h_in), set("c_in", call.c_in);
  set("h", call.h), set("c", call.c), set("state_stride", call.state_stride), set("output", call.output);
  set("cell_clip", call.cell_clip), set("proj_clip", call.proj_clip);
  set("scratch", call.scratch), set("scratch_size", call.scratch_size);
  set("aborts", call.aborts), set("timeout_ns", call.timeout_ns), set("stream", call.stream);
  const py::gil_scoped_release released;
  cuda::run_persistent(call);
}

DeviceTuple current_device() {
  const cuda::Device d = cuda::current_device();
  return {d.processors, d.shared, d.clusters[0], d.clusters[1], d.clusters[2]};
}

#endif

}  // namespace

void bind_cuda(py::module_& m) {
  m.def("cuda_lstm_plan", plan_lstm, py::arg("dim"), py::arg("projection"), py::arg("device"), py::arg("slots"));
#ifdef ELMO_FAST_HAS_CUDA
  m.def("cuda_lstm_run", run_lstm);
  m.def("cuda_device", current_device);
#endif
}

}  // namespace elmo_fast
