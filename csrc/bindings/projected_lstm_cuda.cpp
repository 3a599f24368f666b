// Python's view of csrc/projected_lstm_cuda.h: pointers travel as integers. Plan and packing need no CUDA.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>

#include "projected_lstm_cuda.h"

namespace py = pybind11;

namespace elmo_fast {
namespace {

using Address = uintptr_t;
using Pair = std::array<Address, 2>;
using DeviceTuple = std::array<int64_t, 5>;  // processors, shared, clusters of 8, 4 and 2

cuda::Device device_of(const DeviceTuple& d) {
  return {int32_t(d[0]), d[1], {int32_t(d[2]), int32_t(d[3]), int32_t(d[4])}};
}

py::dict plan_lstm(int32_t dim, int32_t projection, const DeviceTuple& device, int32_t slots) {
  const cuda::Plan plan = cuda::plan_persistent({dim, projection}, device_of(device), slots);
  py::dict d;
  d["units_per_block"] = plan.units_per_block;
  d["blocks"] = plan.blocks;
  d["cluster"] = plan.cluster;
  d["row_tiles"] = plan.row_tiles;
  d["threads"] = plan.threads;
  d["k_steps"] = plan.k_steps;
  d["register_steps"] = plan.register_steps;
  d["shared_steps"] = plan.shared_steps;
  d["projection_resident"] = plan.projection_resident;
  d["stages"] = plan.stages;
  d["shared"] = plan.shared;
  d["scratch"] = plan.scratch;
  d["resident_bytes"] = plan.resident_bytes;
  d["streamed_bytes"] = plan.streamed_bytes;
  d["reason"] = plan.reason ? py::object(py::str(plan.reason)) : py::object(py::none());
  return d;
}

template <class T>
T* at(Address address) {
  return reinterpret_cast<T*>(address);
}

void pack_lstm(int32_t dim, int32_t projection, int operand, Pair weights, Pair biases, Pair projections,
               Address packed, size_t packed_size) {
  const float* w[2] = {at<const float>(weights[0]), at<const float>(weights[1])};
  const float* b[2] = {at<const float>(biases[0]), at<const float>(biases[1])};
  const float* p[2] = {at<const float>(projections[0]), at<const float>(projections[1])};
  cuda::pack({dim, projection}, static_cast<cuda::Operand>(operand), w, b, p, at<void>(packed), packed_size);
}

#ifdef ELMO_FAST_HAS_CUDA

// Field by field from the keyword arguments of the same names.
void run_lstm(const py::kwargs& given) {
  const auto number = [&](const char* name) { return given[name].cast<int64_t>(); };
  const auto clip = [&](const char* name) { return given[name].cast<float>(); };
  cuda::Call call = {};
  const auto pointer = [&](const char* name, auto& field) {
    field = reinterpret_cast<std::remove_reference_t<decltype(field)>>(given[name].cast<Address>());
  };
  call.shape = {int32_t(number("dim")), int32_t(number("projection"))};
  call.device = device_of(given["device"].cast<DeviceTuple>());
  call.operand = static_cast<cuda::Operand>(number("operand"));
  call.steps = int32_t(number("steps")), call.slots = int32_t(number("slots")), call.stride = int32_t(number("stride"));
  call.state_stride = number("state_stride"), call.nanoseconds = number("nanoseconds");
  call.scratch_size = size_t(number("scratch_size"));
  call.cell_clip = clip("cell_clip"), call.proj_clip = clip("proj_clip");
  pointer("packed", call.packed), pointer("z", call.z), pointer("scale", call.scale), pointer("meta", call.meta);
  pointer("places", call.places), pointer("batch_sizes", call.batch_sizes);
  pointer("fresh_h", call.fresh_h), pointer("fresh_c", call.fresh_c);
  pointer("h_first", call.h_first), pointer("c_first", call.c_first), pointer("h", call.h), pointer("c", call.c);
  pointer("output", call.output), pointer("scratch", call.scratch), pointer("aborts", call.aborts);
  pointer("stream", call.stream);
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
  m.def("cuda_lstm_packed_size", [](int32_t dim, int32_t projection) { return cuda::packed_size({dim, projection}); },
        py::arg("dim"), py::arg("projection"));
  m.def("cuda_lstm_pack", pack_lstm, py::call_guard<py::gil_scoped_release>(), py::arg("dim"), py::arg("projection"),
        py::arg("operand"), py::arg("weights"), py::arg("biases"), py::arg("projections"), py::arg("packed"),
        py::arg("packed_size"));
#ifdef ELMO_FAST_HAS_CUDA
  m.def("cuda_lstm_run", run_lstm);
  m.def("cuda_device", current_device);
#endif
}

}  // namespace elmo_fast
