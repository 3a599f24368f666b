// The native module: properties of the CPU and the build, and bindings of the contracts, one file per contract.
#include "arguments.h"
#include "cpu/engine.h"
#include "cpu/threads/openmp.h"

namespace elmo_fast {

void bind_lstm(py::module_& m);
void bind_linear(py::module_& m);
void bind_char_cnn(py::module_& m);
void bind_cuda(py::module_& m);
void bind_model(py::module_& m);

namespace {

py::dict features_in(uint32_t set) {
  py::dict features;
  for (int k = 0; k < feature_count; ++k) features[feature_table[k].name] = py::bool_(set >> k & 1);
  return features;
}

py::dict engines() {
  py::dict engines;
  for (int k = 0; k < isa_count; ++k) {
    const cpu::Level& level = cpu::level_of(static_cast<Isa>(k));
    if (cpu::fp32_engines(level)) engines[level.name] = features_in(cpu::needed_features(level));
  }
  return engines;
}

void bind_cpu(py::module_& m) {
  m.def(
      "cpu_features", [] { return features_in(cpu_feature_set()); },
      "Feature of x86 -> whether the CPU has it and the operating system keeps its registers.");
  m.def("engines", engines, "Level of this build -> feature -> whether its engines need it.");
  m.def("amx_permitted", amx_permitted,
        "Whether this process may use AMX tile data; the first call asks the operating system.");
  m.def(
      "cpu_isa", [] { return cpu::level_of(cpu::cpu_isa()).name; },
      "Best usable of generic, neon, neon-dotprod, avx2, avx-vnni, avx512, avx512-vnni, avx512-bf16, amx, at most the "
      "one in ELMO_FAST_CPU_ISA.");
  m.def("use_openmp_threads", cpu::use_openmp_threads,
        "Run long calls on the threads of the OpenMP runtime that this process has loaded; whether there is one.");
  m.def("threads_are_openmp", cpu::threads_are_openmp, "Whether long calls run on threads of an OpenMP runtime.");
  m.def("set_least_share", cpu::set_least_share,
        "Nanoseconds of work that are worth a thread's wake-up, by default 100,000; tests set 0.");
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
  bind_lstm(m);
  bind_linear(m);
  bind_char_cnn(m);
  bind_cuda(m);
  bind_model(m);
}
