// The interpreter and the fake device from Python; with the project's own launchers where they are linked in.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "fake_runtime.h"

namespace py = pybind11;

namespace elmo_fast {
void bind_cuda(py::module_& m);
}

namespace {

using ptx::Runtime;

ptx::Kernel& kernel_of(size_t source, const std::string& name) {
  for (const auto& kernel : Runtime::get().kernels(source))
    if (kernel->name == name) return *kernel;
  throw ptx::Trap("no kernel " + name);
}

size_t load(const std::string& text) {
  auto& sources = Runtime::get().sources;
  sources.push_back({text, ptx::Parser().parse(text)});
  return sources.size() - 1;
}

void replace(size_t source, const std::string& text) { Runtime::get().sources.at(source) = {text, ptx::Parser().parse(text)}; }

void unload(size_t source) { Runtime::get().sources.at(source) = {}; }

py::list kernels(size_t source) {
  py::list result;
  for (const auto& kernel : Runtime::get().kernels(source)) {
    std::vector<uint32_t> sizes;
    for (const ptx::Parameter& parameter : kernel->parameters) sizes.push_back(parameter.size);
    result.append(py::make_tuple(kernel->name, sizes, kernel->static_shared));
  }
  return result;
}

using Three = std::array<uint32_t, 3>;

void launch(size_t source, const std::string& name, Three grid, Three block, uint32_t shared,
            const std::vector<std::string>& arguments, uint32_t cluster, bool cooperative, uint32_t seed) {
  ptx::Launch how;
  std::copy_n(grid.begin(), 3, how.grid);
  std::copy_n(block.begin(), 3, how.block);
  how.shared = shared;
  how.cluster = cluster;
  how.together = cooperative;
  how.seed = seed;
  Runtime::get().launch(kernel_of(source, name), how, arguments);
}

// A tuple for each instruction: kernel, line, mnemonic, text, and its counts.
py::list executed(size_t source) {
  py::list result;
  for (const auto& k : Runtime::get().kernels(source))
    for (size_t i = 0; i + 1 < k->code.size(); ++i) {  // the last is the end that every kernel is given
      const ptx::Instruction& in = k->code[i];
      const ptx::Counts& c = in.counts;
      result.append(py::make_tuple(k->name, in.line, in.mnemonic, in.text, c.executed, c.threads, c.bytes, c.sectors,
                                   c.wavefronts, c.ideal));
    }
  return result;
}

void reset(size_t source) {
  for (const auto& kernel : Runtime::get().kernels(source))
    for (ptx::Instruction& in : kernel->code) in.counts = {};
}

void set_device(int processors, int shared, int shared_per_processor, std::pair<int, int> capability,
    std::vector<int> clusters) {
  ptx::Device& device = Runtime::get().device;
  device.processors = processors;
  device.shared = shared;
  device.shared_per_processor = shared_per_processor;
  std::tie(device.major, device.minor) = capability;
  device.clusters = std::move(clusters);
}

void set(bool checks, bool traffic, uint32_t seed) {
  Runtime::get().settings = {checks, traffic, seed};
}

}  // namespace

PYBIND11_MODULE(ELMO_FAST_PTX, m) {
  m.doc() = "The project's CUDA launchers over an interpreter of PTX. Device memory is the host's.";
  py::register_local_exception<ptx::Trap>(m, "Trap", PyExc_RuntimeError);
  m.def("load", load);
  m.def("replace", replace);
  m.def("unload", unload);
  m.def("source", [](size_t source) { return Runtime::get().sources.at(source).text; });
  m.def("embedded", [] { return Runtime::get().embedded; });
  m.def("kernels", kernels);
  m.def("launch", launch);
  m.def("executed", executed);
  m.def("reset", reset);
  const ptx::Device h100;
  m.def("set_device", set_device, py::arg("processors") = h100.processors, py::arg("shared") = h100.shared,
        py::arg("shared_per_processor") = h100.shared_per_processor,
        py::arg("capability") = std::pair(h100.major, h100.minor), py::arg("clusters") = h100.clusters);
  m.def("set", set, py::arg("checks") = true, py::arg("traffic") = false, py::arg("seed") = 0);
  m.def("register_memory", [](uintptr_t begin, size_t bytes, const std::string& name, bool tracked, bool defined) {
    Runtime::get().memory.add(begin, bytes, name, tracked, defined);
  });
  m.def("forget_memory", [] { Runtime::get().memory.clear(); });
  elmo_fast::bind_cuda(m);
}
