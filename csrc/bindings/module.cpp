// The native module: one bind_* function for each contract header, then what the CPU and the build are.
#include <pybind11/pybind11.h>

#include "cpu/engine.h"

namespace py = pybind11;

namespace elmo_fast {

void bind_projected_lstm(py::module_& m);
void bind_linear(py::module_& m);
void bind_char_cnn(py::module_& m);
void bind_cuda(py::module_& m);

namespace {

py::dict features() {
  py::dict features;
  for (const auto& [name, present] : cpu_features()) features[py::str(name)] = present;
  return features;
}

void bind_cpu(py::module_& m) {
  m.def("cpu_features", features,
        "Feature name -> whether the CPU has it and the operating system keeps its registers.");
  m.def("amx_permitted", amx_permitted,
        "Whether this process may use AMX tile data; the first call asks the operating system.");
  m.def(
      "cpu_isa", [] { return isa_name(cpu_isa()); },
      "Best usable of generic, avx2, avx512, amx, at most the one in ELMO_FAST_CPU_ISA.");
  m.def("use_openmp_threads", cpu::use_openmp_threads,
        "Run on the threads of the OpenMP runtime that this process has loaded; whether there is one.");
  m.def("use_own_threads", cpu::use_own_threads, "Run on the engine's own threads.");
  m.def("threads_are_openmp", cpu::threads_are_openmp, "Whether they are those of an OpenMP runtime.");
}

void bind_build(py::module_& m) {
#ifdef ELMO_FAST_HAS_CUDA
  m.attr("has_cuda") = true;
  m.attr("cuda_skipped") = py::none();  // why the CUDA kernels were not built
#else
  m.attr("has_cuda") = false;
  m.attr("cuda_skipped") = ELMO_FAST_NO_CUDA_REASON;
#endif
}

}  // namespace
}  // namespace elmo_fast

PYBIND11_MODULE(_native, m) {
  using namespace elmo_fast;
  m.doc() = "Native kernels of elmo_fast: raw pointers in and out, nothing of PyTorch.";
  bind_build(m);
  bind_cpu(m);
  bind_projected_lstm(m);
  bind_linear(m);
  bind_char_cnn(m);
  bind_cuda(m);
}
