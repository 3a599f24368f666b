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

Kernel& Runtime::find(const std::string& name) {
  for (int source : embedded)
    for (const auto& kernel : kernels(size_t(source)))
      if (kernel->name == name) return *kernel;
  throw Trap("no kernel " + name);
}

void Runtime::launch(Kernel& kernel, Launch launch, const std::vector<std::string>& arguments) {
  if (arguments.size() != kernel.parameters.size())
    throw Trap(kernel.name + ": expected " + std::to_string(kernel.parameters.size()) + " arguments, got " +
               std::to_string(arguments.size()));
  std::vector<char> bytes(kernel.parameter_bytes);
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].size() != kernel.parameters[i].size)
      throw Trap(kernel.name + ": argument " + std::to_string(i) + " has another size");
    memcpy(bytes.data() + kernel.parameters[i].at, arguments[i].data(), arguments[i].size());
  }
  if (settings.seed) launch.seed = settings.seed++;
  Machine(kernel, launch, memory, settings).run(bytes.data());
}

namespace {

cudaError_t failed(cudaError_t error, const std::string& what) {
  Runtime::get().error = what;
  return error;
}

const std::string& kernel_name(const void* function) { return Runtime::get().names.at(function); }

int blocks_per_processor(const Kernel& kernel, int threads, size_t shared) {
  const Device& device = Runtime::get().device;
  const int registers = std::min(255, device.registers / int(kernel.most_threads)) / 8 * 8;
  const int by_shared = device.shared_per_processor / (int(shared + kernel.static_shared) + 1024);
  return std::min({by_shared, 2048 / threads, device.registers / std::max(1, registers * threads)});
}

// The first PTX in a fat binary: a header of 16 bytes, then entries of their own header and their text.
std::string ptx_of(const char* fat) {
  uint64_t size;
  memcpy(&size, fat + 8, 8);
  for (const char *at = fat + 16, *end = at + size; at < end;) {
    uint16_t kind;
    uint32_t header;
    uint64_t length;
    memcpy(&kind, at, 2), memcpy(&header, at + 4, 4), memcpy(&length, at + 8, 8);
    if (kind == 1) return std::string(at + header, strnlen(at + header, length));
    at += header + length;
  }
  return "";
}

cudaError_t launch(const void* function, dim3 grid, dim3 block, size_t shared, unsigned cluster, bool cooperative,
    void** arguments) try {
  Runtime& runtime = Runtime::get();
  Kernel& kernel = runtime.find(kernel_name(function));
  const auto allowed = runtime.allowed_shared.find(kernel.name);
  if (shared + kernel.static_shared > size_t(allowed == runtime.allowed_shared.end() ? 49152 : allowed->second))
    return failed(cudaErrorInvalidValue, "more shared memory than was allowed: " + std::to_string(shared));
  const int threads = int(block.x * block.y * block.z);
  const int resident = blocks_per_processor(kernel, threads, shared) * runtime.device.processors;
  if (cooperative && int(grid.x * grid.y * grid.z) > resident)
    return failed(cudaErrorCooperativeLaunchTooLarge, std::to_string(resident) + " blocks of a cooperative launch fit");
  if (cluster > 1 && runtime.device.major < 9)
    return failed(cudaErrorNotSupported, "clusters on a device that has none");
  if (cluster > 8) return failed(cudaErrorInvalidClusterSize, "a cluster of more than 8 blocks");
  std::vector<std::string> values;
  for (size_t i = 0; i < kernel.parameters.size(); ++i)
    values.emplace_back(static_cast<const char*>(arguments[i]), kernel.parameters[i].size);
  Launch how;
  const unsigned g[] = {grid.x, grid.y, grid.z}, b[] = {block.x, block.y, block.z};
  std::copy_n(g, 3, how.grid), std::copy_n(b, 3, how.block);
  how.shared = uint32_t(shared);
  how.cluster = cluster;
  how.together = cooperative;
  runtime.launch(kernel, how, values);
  return cudaSuccess;
} catch (const Trap& trap) {
  return failed(cudaErrorLaunchFailure, trap.what());
}

}  // namespace
}  // namespace ptx

using ptx::Runtime;

extern "C" {

void** __cudaRegisterFatBinary(void* wrapper) {
  struct Wrapper { int magic, version; const char* data; void* unused; };
  Runtime& runtime = Runtime::get();
  runtime.embedded.push_back(int(runtime.sources.size()));
  runtime.sources.push_back({ptx::ptx_of(static_cast<Wrapper*>(wrapper)->data), {}});
  static void* handle;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void**, const char* host, char*, const char* device, int, uint3*, uint3*, dim3*, dim3*,
    int*) {
  Runtime::get().names[host] = device;
}
unsigned __cudaPushCallConfiguration(dim3, dim3, size_t, void*) { return 1; }  // <<<>>> is not in use
cudaError_t __cudaPopCallConfiguration(dim3*, dim3*, size_t*, void*) { return cudaErrorNotSupported; }
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, size_t shared,
    cudaStream_t) {
  return ptx::launch(kernel, grid, block, shared, 1, false, arguments);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function, void** arguments) {
  unsigned cluster = 1;
  bool cooperative = false;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const cudaLaunchAttribute& attribute = config->attrs[i];
    if (attribute.id == cudaLaunchAttributeClusterDimension) cluster = attribute.val.clusterDim.x;
    if (attribute.id == cudaLaunchAttributeCooperative) cooperative = attribute.val.cooperative;
  }
  return ptx::launch(function, config->gridDim, config->blockDim, config->dynamicSmemBytes, cluster, cooperative,
      arguments);
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t) try {
  Runtime::get().memory.written(uintptr_t(to), bytes);
  memset(to, value, bytes);
  return cudaSuccess;
} catch (const ptx::Trap& trap) {
  return ptx::failed(cudaErrorInvalidValue, trap.what());
}

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  Runtime& runtime = Runtime::get();
  const std::string& name = ptx::kernel_name(function);
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
  const int fixed = int(runtime.find(name).static_shared);
  if (value < 0 || value + fixed > runtime.device.shared)
    return ptx::failed(cudaErrorInvalidValue, "more shared memory than the device has: " + std::to_string(value));
  runtime.allowed_shared[name] = value + fixed;
  return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* function) {
  const Runtime& runtime = Runtime::get();
  const ptx::Kernel& kernel = Runtime::get().find(ptx::kernel_name(function));
  memset(attributes, 0, sizeof *attributes);
  attributes->ptxVersion = attributes->binaryVersion = 10 * runtime.device.major + runtime.device.minor;
  attributes->sharedSizeBytes = kernel.static_shared;
  attributes->maxThreadsPerBlock = int(kernel.most_threads);
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  const ptx::Device& device = Runtime::get().device;
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount: *value = device.processors; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = device.shared; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = device.shared_per_processor; break;
    case cudaDevAttrComputeCapabilityMajor: *value = device.major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = device.minor; break;
    case cudaDevAttrCooperativeLaunch: *value = 1; break;
    case cudaDevAttrClusterLaunch: *value = device.major >= 9; break;
    default: return ptx::failed(cudaErrorInvalidValue, "a device attribute that is not modelled");
  }
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveClusters(int* count, const void* function, const cudaLaunchConfig_t* config) {
  const ptx::Device& device = Runtime::get().device;
  int size = 1;
  for (unsigned i = 0; i < config->numAttrs; ++i)
    if (config->attrs[i].id == cudaLaunchAttributeClusterDimension) size = int(config->attrs[i].val.clusterDim.x);
  if (device.major < 9) return ptx::failed(cudaErrorNotSupported, "clusters on a device that has none");
  const ptx::Kernel& kernel = Runtime::get().find(ptx::kernel_name(function));
  const int blocks = ptx::blocks_per_processor(kernel, int(config->blockDim.x), config->dynamicSmemBytes);
  *count = 0;
  for (int processors : device.clusters) *count += processors * blocks / size;
  return cudaSuccess;
}

const char* cudaGetErrorString(cudaError_t) { return Runtime::get().error.c_str(); }
cudaError_t cudaGetLastError() { return cudaSuccess; }  // every call reports its own
}
