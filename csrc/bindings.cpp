// The Python face of the native code: one bind_* function per header, no logic.
#include <pybind11/pybind11.h>

#include "cpu/cpu_features.h"
#include "cpu/openmp_threads.h"

namespace py = pybind11;

namespace elmo_fast {
void bind_cpu(py::module_& m);
void bind_training(py::module_& m);
void bind_cuda(py::module_& m);
}

namespace {

py::dict cpu_features() {
  py::dict features;
  for (const auto& [name, present] : elmo_fast::cpu_features()) features[py::str(name)] = present;
  return features;
}

void bind_cpu_features(py::module_& m) {
  m.def("cpu_features", &cpu_features,
        "Feature name -> whether the CPU has it and the operating system keeps its registers.");
  m.def("amx_permitted", &elmo_fast::amx_permitted,
        "Whether this process may use AMX tile data; the first call asks the operating system.");
  m.def("cpu_isa", [] { return elmo_fast::isa_name(elmo_fast::cpu_isa()); },
        "Best usable of generic, avx2, avx512, amx, at most the one in ELMO_FAST_CPU_ISA.");
}

void bind_threads(py::module_& m) {
  m.def("use_openmp_threads", &elmo_fast::cpu::use_openmp_threads,
        "Run on the threads of the OpenMP runtime that this process has loaded; whether there is one.");
  m.def("threads_are_openmp", &elmo_fast::cpu::threads_are_openmp, "Whether they are those of an OpenMP runtime.");
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

PYBIND11_MODULE(_native, m) {
  m.doc() = "Native kernels of elmo_fast: raw pointers in and out, nothing of PyTorch.";
  bind_build(m);
  bind_cpu_features(m);
  bind_threads(m);
  elmo_fast::bind_cpu(m);
  elmo_fast::bind_training(m);
  elmo_fast::bind_cuda(m);
}
