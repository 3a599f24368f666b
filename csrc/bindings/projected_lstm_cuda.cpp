// Python bindings of csrc/projected_lstm_cuda.h. The plan needs no CUDA.
#include "projected_lstm_cuda.h"

#include "arguments.h"

namespace elmo_fast {
namespace {

using namespace py::literals;

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

}  // namespace

void bind_cuda(py::module_& m) {
  m.def("cuda_lstm_plan", plan_lstm, py::arg("dim"), py::arg("projection"), py::arg("device"), py::arg("slots"));
#ifdef ELMO_FAST_HAS_CUDA
  m.def("cuda_lstm_run", [](const py::kwargs& keywords) {
    Arguments given("cuda_lstm_run", keywords);
    cuda::Call call = {};
    call.device = device_of(given.get<DeviceTuple>("device"));
    given.read("dim", call.dim, "projection", call.projection, "packed", call.packed);
    given.read("z", call.z, "scale", call.scale, "steps", call.steps, "slots", call.slots, "stride", call.stride);
    given.read("meta", call.meta, "packed_rows", call.packed_rows, "batch_sizes", call.batch_sizes);
    given.read("initial_h", call.initial_h, "initial_c", call.initial_c, "h_in", call.h_in, "c_in", call.c_in);
    given.read("h", call.h, "c", call.c, "state_stride", call.state_stride, "output", call.output);
    given.read("cell_clip", call.cell_clip, "proj_clip", call.proj_clip);
    given.read("scratch", call.scratch, "device_index", call.device_index, "stream", call.stream);
    given.finish([&] { cuda::run_persistent(call); });
  });
  m.def("cuda_device", [](int index) {
    const cuda::Device d = cuda::use_device(index);
    return DeviceTuple{d.processors, d.shared, d.clusters[0], d.clusters[1], d.clusters[2]};
  });
  m.def("cuda_has_code_for", cuda::has_code_for);
#endif
}

}  // namespace elmo_fast
