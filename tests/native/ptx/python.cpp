// The interpreter and the fake device from Python; with the project's own launchers where they are linked in.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "fake_runtime.h"

namespace py = pybind11;
using Three = std::array<uint32_t, 3>;

namespace elmo_fast {
void bind_cuda(py::module_& m);
}

PYBIND11_MODULE(ELMO_FAST_PTX, m) {
  static ptx::Runtime& runtime = ptx::Runtime::get();
  m.doc() = "The project's CUDA launchers over an interpreter of PTX. Device memory is the host's.";
  py::register_local_exception<ptx::Trap>(m, "Trap", PyExc_RuntimeError);
  m.def("load", [](const std::string& text) {
    runtime.sources.push_back({text, ptx::Parser().parse(text)});
    return runtime.sources.size() - 1;
  });
  m.def("replace",
        [](size_t source, const std::string& text) { runtime.sources.at(source) = {text, ptx::Parser().parse(text)}; });
  m.def("unload", [](size_t source) { runtime.sources.at(source) = {}; });
  m.def("source", [](size_t source) { return runtime.sources.at(source).text; });
  m.def("embedded", [] { return runtime.embedded; });
  m.def("kernels", [](size_t source) {  // name, sizes of the parameters, static shared memory
    py::list result;
    for (const auto& kernel : runtime.kernels(source)) {
      std::vector<uint32_t> sizes;
      for (const ptx::Parameter& parameter : kernel->parameters) sizes.push_back(parameter.size);
      result.append(py::make_tuple(kernel->name, sizes, kernel->static_shared));
    }
    return result;
  });
  m.def("launch", [](size_t source, const std::string& name, Three grid, Three block, uint32_t shared,
                     const std::vector<std::string>& arguments, uint32_t cluster, bool cooperative, uint32_t seed) {
    runtime.launch(runtime.find({source}, name), {grid, block, shared, cluster, seed, cooperative}, arguments);
  });
  m.def("executed", [](size_t source) {  // of each instruction: kernel, line, mnemonic, text, and its counts
    py::list result;
    for (const auto& k : runtime.kernels(source))
      for (size_t i = 0; i + 1 < k->code.size(); ++i) {  // the last is the end that every kernel is given
        const ptx::Instruction& in = k->code[i];
        const ptx::Counts& c = in.counts;
        result.append(py::make_tuple(k->name, in.line, in.mnemonic, in.text, c.executed, c.threads, c.bytes, c.sectors,
                                     c.wavefronts, c.ideal));
      }
    return result;
  });
  m.def("reset", [](size_t source) {
    for (const auto& kernel : runtime.kernels(source))
      for (ptx::Instruction& in : kernel->code) in.counts = {};
  });
  const ptx::Device h100;
  m.def(
      "set_device",
      [](int processors, int shared, int shared_per_processor, std::pair<int, int> capability,
         const std::vector<int>& clusters) {
        runtime.device = {processors, shared, shared_per_processor, capability, clusters};
      },
      py::arg("processors") = h100.processors, py::arg("shared") = h100.shared,
      py::arg("shared_per_processor") = h100.shared_per_processor, py::arg("capability") = h100.capability,
      py::arg("clusters") = h100.clusters);
  m.def(
      "set", [](bool checks, bool traffic, uint32_t seed) { runtime.settings = {checks, traffic, seed}; },
      py::arg("checks") = true, py::arg("traffic") = false, py::arg("seed") = 0);
  m.def("register_memory", [](uintptr_t begin, size_t bytes, const std::string& name, bool tracked, bool defined) {
    runtime.memory.add(begin, bytes, name, tracked, defined);
  });
  m.def("forget_memory", [] { runtime.memory.clear(); });
  elmo_fast::bind_cuda(m);
}
