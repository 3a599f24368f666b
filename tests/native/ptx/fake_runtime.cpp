#include "fake_runtime.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>

namespace ptx {

Runtime& Runtime::get() {
  static Runtime* runtime = new Runtime;  // fat binaries register before main and leave after it
  return *runtime;
}

Module& Runtime::kernels(size_t source) {
  Source& from = sources.at(source);
  if (from.kernels.empty()) from.kernels = Parser().parse(from.text);
  return from.kernels;
}

Kernel& Runtime::find(const std::vector<size_t>& in, const std::string& name) {
  for (size_t source : in)
    for (const auto& kernel : kernels(source))
      if (kernel->name == name) return *kernel;
  throw Trap("no kernel " + name);
}

void Runtime::launch(Kernel& kernel, Launch launch, const std::vector<std::string>& arguments) {
  std::vector<char> bytes(kernel.parameter_bytes);
  if (arguments.size() != kernel.parameters.size()) throw Trap(kernel.name + ": unexpected number of arguments");
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto [at, size] = kernel.parameters[i];
    if (arguments[i].size() != size) throw Trap(kernel.name + ": argument " + std::to_string(i) + " has another size");
    memcpy(bytes.data() + at, arguments[i].data(), size);
  }
  if (settings.seed) launch.seed = settings.seed++;
  Machine(kernel, launch, memory, settings).run(bytes.data());
}

namespace {

cudaError_t failed(cudaError_t error, const std::string& what) {
  Runtime::get().error = what;
  return error;
}

Kernel& kernel_of(const void* function) {
  Runtime& runtime = Runtime::get();
  return runtime.find(runtime.embedded, runtime.names.at(function));
}

int blocks_per_processor(const Kernel& kernel, int threads, size_t shared) {
  constexpr int registers = 65536;
  const int of_thread = std::min(255, registers / int(kernel.most_threads)) / 8 * 8;
  const int by_shared = Runtime::get().device.shared_per_processor / (int(shared + kernel.static_shared) + 1024);
  return std::min({by_shared, 2048 / threads, registers / std::max(1, of_thread * threads)});
}

struct Attributes {
  unsigned cluster = 1;
  bool cooperative = false;
  explicit Attributes(const cudaLaunchConfig_t& config) {
    for (unsigned i = 0; i < config.numAttrs; ++i) {
      const cudaLaunchAttribute& given = config.attrs[i];
      if (given.id == cudaLaunchAttributeClusterDimension) cluster = given.val.clusterDim.x;
      if (given.id == cudaLaunchAttributeCooperative) cooperative = given.val.cooperative;
    }
  }
};

// The first PTX in a fat binary: a header of 16 bytes, then entries of their own header and their text.
std::string ptx_of(const char* fat) {
  struct {
    uint16_t kind, version;
    uint32_t header;
    uint64_t length;
  } entry;
  uint64_t size;
  memcpy(&size, fat + 8, sizeof size);
  for (const char *at = fat + 16, *end = at + size; at < end; at += entry.header + entry.length) {
    memcpy(&entry, at, sizeof entry);
    if (entry.kind == 1) return std::string(at + entry.header, strnlen(at + entry.header, entry.length));
  }
  return "";
}

}  // namespace
}  // namespace ptx

using namespace ptx;

extern "C" {

void** __cudaRegisterFatBinary(void* wrapper) {
  struct Wrapper {
    int magic, version;
    const char* data;
    void* unused;
  };
  Runtime& runtime = Runtime::get();
  runtime.embedded.push_back(runtime.sources.size());
  runtime.sources.push_back({ptx_of(static_cast<Wrapper*>(wrapper)->data), {}});
  static void* handle;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void**, const char* host, char*, const char* device, int, uint3*, uint3*, dim3*, dim3*,
                            int*) {
  Runtime::get().names[host] = device;
}
// <<<>>> is not in use
unsigned __cudaPushCallConfiguration(dim3, dim3, size_t, void*) { return 1; }
cudaError_t __cudaPopCallConfiguration(dim3*, dim3*, size_t*, void*) { return cudaErrorNotSupported; }
cudaError_t __cudaGetKernel(cudaKernel_t*, const void*) { return cudaErrorNotSupported; }
cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void**, size_t, cudaStream_t) { return cudaErrorNotSupported; }

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function, void** arguments) try {
  Runtime& runtime = Runtime::get();
  Kernel& kernel = kernel_of(function);
  const auto [cluster, cooperative] = Attributes(*config);
  const dim3 grid = config->gridDim, block = config->blockDim;
  const size_t shared = config->dynamicSmemBytes;
  const auto allowed = runtime.allowed_shared.find(kernel.name);
  if (shared + kernel.static_shared > size_t(allowed == runtime.allowed_shared.end() ? 49152 : allowed->second))
    return failed(cudaErrorInvalidValue, "more shared memory than was allowed: " + std::to_string(shared));
  const int threads = int(block.x * block.y * block.z);
  const int resident = blocks_per_processor(kernel, threads, shared) * runtime.device.processors;
  if (cooperative && int(grid.x * grid.y * grid.z) > resident)
    return failed(cudaErrorCooperativeLaunchTooLarge, std::to_string(resident) + " blocks of a cooperative launch fit");
  if (cluster > 1 && runtime.device.capability.first < 9)
    return failed(cudaErrorNotSupported, "clusters on a device that has none");
  if (cluster > 8) return failed(cudaErrorInvalidClusterSize, "a cluster of more than 8 blocks");
  std::vector<std::string> values;
  for (size_t i = 0; i < kernel.parameters.size(); ++i)
    values.emplace_back(static_cast<const char*>(arguments[i]), kernel.parameters[i].size);
  runtime.launch(kernel,
                 {{grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, uint32_t(shared), cluster, 0, cooperative},
                 values);
  return cudaSuccess;
} catch (const Trap& trap) {
  return failed(cudaErrorLaunchFailure, trap.what());
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t) try {
  Runtime::get().memory.written(uintptr_t(to), bytes);
  memset(to, value, bytes);
  return cudaSuccess;
} catch (const Trap& trap) {
  return failed(cudaErrorInvalidValue, trap.what());
}

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  Runtime& runtime = Runtime::get();
  const Kernel& kernel = kernel_of(function);
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
  const int fixed = int(kernel.static_shared);
  if (value < 0 || value + fixed > runtime.device.shared)
    return failed(cudaErrorInvalidValue, "more shared memory than the device has: " + std::to_string(value));
  runtime.allowed_shared[kernel.name] = value + fixed;
  return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  const auto [major, minor] = Runtime::get().device.capability;
  *attributes = {};
  attributes->ptxVersion = 10 * major + minor;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  const Device& device = Runtime::get().device;
  if (attribute != cudaDevAttrMultiProcessorCount && attribute != cudaDevAttrMaxSharedMemoryPerBlockOptin)
    return failed(cudaErrorInvalidValue, "a device attribute that is not modelled");
  *value = attribute == cudaDevAttrMultiProcessorCount ? device.processors : device.shared;
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveClusters(int* count, const void* function, const cudaLaunchConfig_t* config) {
  const Device& device = Runtime::get().device;
  if (device.capability.first < 9) return failed(cudaErrorNotSupported, "clusters on a device that has none");
  const int blocks = blocks_per_processor(kernel_of(function), int(config->blockDim.x), config->dynamicSmemBytes);
  *count = 0;
  for (int processors : device.clusters) *count += processors * blocks / int(Attributes(*config).cluster);
  return cudaSuccess;
}

const char* cudaGetErrorString(cudaError_t) { return Runtime::get().error.c_str(); }
cudaError_t cudaGetLastError() { return cudaSuccess; }  // every call reports its own
}
