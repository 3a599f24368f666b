// Python's view of csrc/projected_lstm_cuda.h: pointers travel as integers. Plan and packing need no CUDA.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <vector>

#include "projected_lstm_cuda.h"

namespace py = pybind11;

namespace elmo_fast {
namespace {

using Address = uintptr_t;
using Pair = std::array<Address, 2>;
using DeviceTuple = std::array<int64_t, 3>;  // processors, shared, cluster

template <class T>
T* at(Address address) {
  return reinterpret_cast<T*>(address);
}

cuda::Device device_of(const DeviceTuple& d) { return {int32_t(d[0]), d[1], int32_t(d[2])}; }

py::dict as_dict(const cuda::Plan& plan) {
  py::dict d;
  d["units_per_block"] = plan.units_per_block;
  d["blocks"] = plan.blocks;
  d["cluster"] = plan.cluster;
  d["lane_tiles"] = plan.lane_tiles;
  d["shared"] = plan.shared;
  d["scratch"] = plan.scratch;
  d["reason"] = plan.reason ? py::object(py::str(plan.reason)) : py::object(py::none());
  return d;
}

void pack_lstm(int32_t dim, int32_t projection, int operand, Pair weights, Pair biases, Pair projections,
               Address packed, size_t packed_size) {
  const float* w[2] = {at<const float>(weights[0]), at<const float>(weights[1])};
  const float* b[2] = {at<const float>(biases[0]), at<const float>(biases[1])};
  const float* p[2] = {at<const float>(projections[0]), at<const float>(projections[1])};
  cuda::pack({dim, projection}, static_cast<cuda::Operand>(operand), w, b, p, at<void>(packed), packed_size);
}

void bind_layout(py::module_& m) {
  m.def(
      "cuda_lstm_plan",
      [](bool persistent, int32_t dim, int32_t projection, DeviceTuple device, int32_t lanes) {
        return as_dict((persistent ? cuda::plan_persistent : cuda::plan_steps)({dim, projection}, device_of(device), lanes));
      },
      py::arg("persistent"), py::arg("dim"), py::arg("projection"), py::arg("device"), py::arg("lanes"));
  m.def("cuda_lstm_packed_size", [](int32_t dim, int32_t projection) { return cuda::packed_size({dim, projection}); },
        py::arg("dim"), py::arg("projection"));
  m.def("cuda_lstm_pack", pack_lstm, py::call_guard<py::gil_scoped_release>(), py::arg("dim"), py::arg("projection"),
        py::arg("operand"), py::arg("weights"), py::arg("biases"), py::arg("projections"), py::arg("packed"),
        py::arg("packed_size"));
}

#ifdef ELMO_FAST_HAS_CUDA

struct LstmCall {
  cuda::Call call = {};
  std::vector<int32_t> live;
};

LstmCall lstm_call(const py::kwargs& given) {
  LstmCall result;
  cuda::Call& call = result.call;
  const auto address = [&](const char* name) { return given[name].cast<Address>(); };
  const auto floats = [&](const char* name) { return at<float>(address(name)); };
  const Pair products = given["products"].cast<Pair>(), rows = given["rows"].cast<Pair>();
  result.live = given["live"].cast<std::vector<int32_t>>();
  call.shape = {given["dim"].cast<int32_t>(), given["projection"].cast<int32_t>()};
  call.device = device_of(given["device"].cast<DeviceTuple>());
  call.operand = static_cast<cuda::Operand>(given["operand"].cast<int>());
  call.packed = at<const void>(address("packed"));
  for (size_t d = 0; d < 2; ++d) {
    call.products[d] = at<const float>(products[d]);
    call.rows[d] = at<const int32_t>(rows[d]);
  }
  call.steps = int32_t(result.live.size());
  call.begin = at<const int32_t>(address("begin"));
  call.reset = at<const uint8_t>(address("reset"));
  call.reset_h = floats("reset_h");
  call.reset_c = floats("reset_c");
  call.output = floats("output");
  call.lanes = given["lanes"].cast<int32_t>();
  call.h_first = floats("h_first");
  call.c_first = floats("c_first");
  call.h = floats("h");
  call.c = floats("c");
  call.cell_clip = given["cell_clip"].cast<float>();
  call.proj_clip = given["proj_clip"].cast<float>();
  call.scratch = at<void>(address("scratch"));
  call.scratch_size = given["scratch_size"].cast<size_t>();
  call.stream = at<void>(address("stream"));
  return result;
}

void run_steps(bool last_block_sums, const py::kwargs& given) {
  LstmCall mine = lstm_call(given);
  mine.call.live = mine.live.data();
  const py::gil_scoped_release released;
  cuda::steps(mine.call, last_block_sums ? cuda::Sums::last_block : cuda::Sums::kernel);
}

void run_persistent(Address aborts, int64_t nanoseconds, uint32_t first_count, int32_t absent_block,
                    const py::kwargs& given) {
  LstmCall mine = lstm_call(given);
  mine.call.live = mine.live.data();
  const py::gil_scoped_release released;
  cuda::persistent(mine.call, {at<int32_t>(aborts), nanoseconds, first_count, absent_block});
}

void bind_launches(py::module_& m) {
  m.def("cuda_lstm_steps", run_steps, py::arg("last_block_sums"));
  m.def("cuda_lstm_persistent", run_persistent, py::arg("aborts"), py::arg("nanoseconds"), py::arg("first_count"),
        py::arg("absent_block"));
  m.def("cuda_device", [] {
    const cuda::Device d = cuda::current_device();
    return DeviceTuple{d.processors, d.shared, d.cluster};
  });
  m.def(
      "cuda_lstm_resident_blocks",
      [](int32_t dim, int32_t projection, int operand, DeviceTuple device, int32_t lanes) {
        const cuda::Plan plan = cuda::plan_persistent({dim, projection}, device_of(device), lanes);
        return plan.reason ? 0 : cuda::resident_blocks(plan, static_cast<cuda::Operand>(operand));
      },
      py::arg("dim"), py::arg("projection"), py::arg("operand"), py::arg("device"), py::arg("lanes"));
}

#endif

}  // namespace

void bind_cuda(py::module_& m) {
  bind_layout(m);
#ifdef ELMO_FAST_HAS_CUDA
  bind_launches(m);
#endif
}

}  // namespace elmo_fast
