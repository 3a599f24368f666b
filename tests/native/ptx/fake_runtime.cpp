// A device for the project's launchers: the runtime calls that they make, over the interpreter, and both from Python.
// Device memory is the host's.
#include <cuda_runtime.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "machine.h"

namespace py = pybind11;
using namespace ptx;

namespace elmo_fast {
void bind_cuda(py::module_& m);
}

namespace {

using Three = std::array<uint32_t, 3>;

struct Runtime {
  int processors = 0, shared = 0, shared_per_processor = 0;
  std::pair<int, int> capability;
  int shared_by_processes = 0;  // -1: the driver does not tell
  std::vector<int> clusters;  // processors of each part that a cluster lies in
  Settings settings;
  GlobalMemory memory;
  std::vector<std::shared_ptr<Kernel>> kernels;  // that the launchers start, by these
  std::map<const void*, std::string> names;
  std::map<std::string, int> allowed_shared;
  std::string error;

  Kernel& find(const void* function) {
    for (const auto& kernel : kernels)
      if (kernel->name == names.at(function)) return *kernel;
    throw Trap("no kernel " + names.at(function));
  }

  void launch(Kernel& kernel, Three grid, Three block, uint32_t shared, uint32_t cluster, bool together,
              const void* const* arguments) {
    Launch launch = {settings, grid, block, shared, cluster, together, std::vector<char>(kernel.parameter_bytes)};
    for (const auto& [at, size] : kernel.parameters) memcpy(launch.parameters.data() + at, *arguments++, size);
    settings.seed += settings.seed > 0;  // another order in the next
    run(kernel, launch, memory);
  }

  int blocks_per_processor(const Kernel& kernel, int threads, size_t bytes) const {
    constexpr int registers = 65536;
    const int of_thread = std::min(255, registers / int(kernel.most_threads)) / 8 * 8;
    const int by_shared = shared_per_processor / (int(bytes) + 1024);
    return std::min({by_shared, 2048 / threads, registers / std::max(1, of_thread * threads)});
  }
};

Runtime runtime __attribute__((init_priority(101)));  // before kernels register

// A runtime call: a Trap of f is its error.
template <class F>
cudaError_t call(const F& f) {
  try {
    f();
    return cudaSuccess;
  } catch (const Trap& trap) {
    runtime.error = trap.what();
    return cudaErrorUnknown;
  }
}

// (blocks of a cluster, whether the launch is cooperative)
std::pair<unsigned, bool> attributes_of(const cudaLaunchConfig_t& config) {
  std::pair<unsigned, bool> found = {1, false};
  for (unsigned i = 0; i < config.numAttrs; ++i) {
    const cudaLaunchAttribute& given = config.attrs[i];
    if (given.id == cudaLaunchAttributeClusterDimension) found.first = given.val.clusterDim.x;
    if (given.id == cudaLaunchAttributeCooperative) found.second = given.val.cooperative;
  }
  return found;
}

}  // namespace

extern "C" {

void** __cudaRegisterFatBinary(void*) { return nullptr; }
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void**, const char* host, char*, const char* device, int, uint3*, uint3*, dim3*, dim3*,
                            int*) {
  runtime.names[host] = device;
}
// <<<>>> is not in use
cudaError_t __cudaPopCallConfiguration(dim3*, dim3*, size_t*, void*) { return cudaErrorNotSupported; }
cudaError_t __cudaGetKernel(cudaKernel_t*, const void*) { return cudaErrorNotSupported; }
cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void**, size_t, cudaStream_t) { return cudaErrorNotSupported; }

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function, void** arguments) {
  return call([&] {
    Kernel& kernel = runtime.find(function);
    const auto [cluster, cooperative] = attributes_of(*config);
    const dim3 grid = config->gridDim, block = config->blockDim;
    const uint32_t shared = uint32_t(config->dynamicSmemBytes);
    if (int(shared) > runtime.allowed_shared.insert({kernel.name, 49152}).first->second)
      throw Trap("more shared memory than was allowed: " + std::to_string(shared));
    const int threads = int(block.x * block.y * block.z);
    const int resident = runtime.blocks_per_processor(kernel, threads, shared) * runtime.processors;
    if (cooperative && int(grid.x * grid.y * grid.z) > resident)
      throw Trap(std::to_string(resident) + " blocks of a cooperative launch fit");
    if (cluster > (runtime.capability.first < 9 ? 1 : 8)) throw Trap("a cluster that the device cannot hold");
    runtime.launch(kernel, {grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, shared, cluster, cooperative,
                   arguments);
  });
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t) {
  return call([&] {
    runtime.memory.written(uintptr_t(to), bytes);
    memset(to, value, bytes);
  });
}

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  return call([&] {
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return;
    if (value < 0 || value > runtime.shared)
      throw Trap("more shared memory than the device has: " + std::to_string(value));
    runtime.allowed_shared[runtime.find(function).name] = value;
  });
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  *attributes = {};
  attributes->ptxVersion = 10 * runtime.capability.first + runtime.capability.second;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  return call([&] {
    if (device) throw Trap("no device " + std::to_string(device));
  });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* of, int) {
  *of = {};
  of->major = runtime.capability.first, of->minor = runtime.capability.second;
  of->multiProcessorCount = runtime.processors;
  of->sharedMemPerBlockOptin = size_t(runtime.shared);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  if (attribute != 133 || runtime.shared_by_processes < 0) return cudaErrorNotSupported;  // cudaDevAttrMpsEnabled
  *value = runtime.shared_by_processes;
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveClusters(int* count, const void* function, const cudaLaunchConfig_t* config) {
  return call([&] {
    if (runtime.capability.first < 9) throw Trap("clusters on a device that has none");
    const Kernel& kernel = runtime.find(function);
    const int blocks = runtime.blocks_per_processor(kernel, int(config->blockDim.x), config->dynamicSmemBytes);
    *count = 0;
    for (int processors : runtime.clusters) *count += processors * blocks / int(attributes_of(*config).first);
  });
}

const char* cudaGetErrorString(cudaError_t) { return runtime.error.c_str(); }
}

PYBIND11_MODULE(ELMO_FAST_PTX, m) {
  py::register_local_exception<Trap>(m, "Trap", PyExc_RuntimeError);
  py::class_<Kernel, std::shared_ptr<Kernel>> kernel(m, "Kernel", py::module_local());
  kernel.def(py::init([](const Source& source) { return Parser(source).kernel; }));
  kernel.def("launch", [](Kernel& kernel, Three grid, Three block, uint32_t shared, uint32_t cluster,
                          const std::vector<uint64_t>& arguments) {  // their low bytes count
    if (arguments.size() != kernel.parameters.size()) throw Trap("another number of arguments than of parameters");
    std::vector<const void*> places;
    for (const uint64_t& argument : arguments) places.push_back(&argument);
    runtime.launch(kernel, grid, block, shared, cluster, false, places.data());
  });
  m.def("use", [](std::vector<std::shared_ptr<Kernel>> kernels) { runtime.kernels = std::move(kernels); });
  m.def("set_device", [](int processors, int shared, int shared_per_processor, std::pair<int, int> capability,
                         const std::vector<int>& clusters, int shared_by_processes) {
    runtime.shared_by_processes = shared_by_processes;
    runtime.processors = processors, runtime.shared = shared, runtime.shared_per_processor = shared_per_processor;
    runtime.capability = capability, runtime.clusters = clusters;
  }, py::arg(), py::arg(), py::arg(), py::arg(), py::arg(), py::arg("shared_by_processes") = 0);
  m.def("set", [](uint32_t seed, const std::tuple<uint32_t, uint32_t, bool, uint32_t, std::string, uint64_t>& hold) {
    const auto& [block, warp, whole, arrivals, at, nanoseconds] = hold;
    runtime.settings = {seed, {block, warp, whole, arrivals, at, nanoseconds}};
  }, py::arg("seed") = 0, py::arg("hold") = py::make_tuple(0, 0, false, 0, "", 0));
  m.def("register_memory", [](uintptr_t begin, size_t bytes, const std::string& name, bool written) {
    runtime.memory.add(begin, bytes, name, written);
  });
  m.def("forget_memory", [] { runtime.memory.regions.clear(); });
  elmo_fast::bind_cuda(m);
}
