// The persistent kernel's instances and their launch.
#include <array>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>

#include "persistent.cuh"

namespace elmo_fast {
namespace cuda {
namespace {

using Kernel = void (*)(Launch);

void check(cudaError_t error, const char* doing) {
  if (error == cudaSuccess) return;
  cudaGetLastError();
  throw std::runtime_error(std::string("CUDA: ") + doing + ": " + cudaGetErrorString(error));
}

void require(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(what);
}

template <class O, size_t... at>
std::array<Kernel, instance_count + 1> kernels_of(std::index_sequence<at...>) {
  return {persistent_kernel<O, instances[at].row_tiles, instances[at].register_steps, instances[at].depth,
                            instances[at].most_threads>...,
          replay_kernel<O>};
}

// An instance, or the replay behind the last of them.
Kernel kernel_for(Operand operand, int instance) {
  constexpr std::make_index_sequence<instance_count> all{};
  return (operand == Operand::fp16 ? kernels_of<Fp16>(all) : kernels_of<Bf16>(all))[size_t(instance)];
}

int attribute(cudaDeviceAttr name) {
  int device, value;
  check(cudaGetDevice(&device), "device");
  check(cudaDeviceGetAttribute(&value, name, device), "device attribute");
  return value;
}

// Every kernel may have all of the device's shared memory. Set once for a device: a launch of another thread would
// otherwise meet the maximum of a smaller plan.
void allow_shared_memory() {
  static std::once_flag once[256];
  int device;
  check(cudaGetDevice(&device), "device");
  std::call_once(once[device % 256], [] {
    const int most = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
    for (const Operand operand : {Operand::fp16, Operand::bf16})
      for (int instance = 0; instance <= instance_count; ++instance)
        check(cudaFuncSetAttribute(kernel_for(operand, instance), cudaFuncAttributeMaxDynamicSharedMemorySize, most),
              "shared memory");
  });
}

void check_call(const Call& call, const Plan& plan) {
  const auto aligned = [](const void* pointer, size_t to) {
    return pointer && reinterpret_cast<uintptr_t>(pointer) % to == 0;
  };
  if (plan.reason) throw std::invalid_argument(std::string("plan: ") + plan.reason);
  require(call.operand == Operand::fp16 || call.operand == Operand::bf16, "operand: expected 0 or 1");
  require(call.steps >= 1 && int64_t(call.steps) * plan.blocks < (int64_t(1) << 29),
          "steps: expected 1 to 2^29 / blocks");
  require(call.stride >= call.slots && call.state_stride >= call.slots,
          "stride, state_stride: expected at least one entry for each slot");
  require(call.cell_clip > 0 && call.proj_clip > 0, "cell_clip, proj_clip: expected more than 0");
  require(aligned(call.packed, 16), "packed: expected a pointer aligned to 16 bytes");
  require(call.z && call.meta && call.packed_rows && call.batch_sizes && call.h_in && call.c_in && call.h && call.c &&
              call.output && call.aborts,
          "z, meta, packed_rows, batch_sizes, h_in, c_in, h, c, output, aborts: expected pointers");
  require(call.timeout_ns >= 0, "timeout_ns: expected 0 or more");
  require(aligned(call.scratch, 256), "scratch: expected a pointer aligned to 256 bytes");
  if (call.scratch_size < plan.scratch_bytes)
    throw std::invalid_argument("scratch: expected " + std::to_string(plan.scratch_bytes) + " bytes, got " +
                                std::to_string(call.scratch_size));
}

cudaLaunchConfig_t config_of(dim3 grid, int threads, int64_t shared, cudaStream_t stream,
                             cudaLaunchAttribute* attributes, int cluster) {
  cudaLaunchConfig_t config = {grid, dim3(unsigned(threads)), size_t(shared), stream, attributes, 0};
  if (cluster > 1) {
    cudaLaunchAttribute& clusters = attributes[config.numAttrs++];
    clusters.id = cudaLaunchAttributeClusterDimension;
    clusters.val.clusterDim.x = unsigned(cluster);
    clusters.val.clusterDim.y = clusters.val.clusterDim.z = 1;
  }
  return config;
}

}  // namespace

Device current_device() {
  Device device = {attribute(cudaDevAttrMultiProcessorCount), attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin), {}};
  const Kernel kernel = kernel_for(Operand::fp16, 0);
  cudaFuncAttributes of;
  check(cudaFuncGetAttributes(&of, kernel), "kernel for this device");
  if (of.ptxVersion < 90) return device;  // the code that runs has no clusters
  allow_shared_memory();
  for (int j = 0; j < 3; ++j) {
    cudaLaunchAttribute attributes[1] = {};
    const int cluster = 8 >> j;
    const cudaLaunchConfig_t config = config_of(dim3(unsigned(device.processors / cluster * cluster)),
                                                instances[0].most_threads, device.shared, nullptr, attributes, cluster);
    check(cudaOccupancyMaxActiveClusters(&device.clusters[j], kernel, &config), "clusters");
  }
  return device;
}

void run_persistent(const Call& call) {
  const Plan plan = plan_persistent(call.dim, call.projection, call.device, call.slots);
  check_call(call, plan);
  allow_shared_memory();
  const Scratch at(plan, call.slots);
  Launch launch = {call, plan, SharedLayout(plan)};
  launch.barriers = reinterpret_cast<Barrier*>(call.scratch);
  launch.abort = reinterpret_cast<uint32_t*>(call.scratch + at.abort);
  launch.operands = reinterpret_cast<uint16_t*>(call.scratch + at.operands);
  launch.partials = reinterpret_cast<float*>(call.scratch + at.partials);
  const cudaStream_t stream = static_cast<cudaStream_t>(call.stream);
  check(cudaMemsetAsync(call.scratch, 0, at.zeroed, stream), "clear");
  cudaLaunchAttribute attributes[2] = {};
  cudaLaunchConfig_t config =
      config_of(dim3(unsigned(plan.blocks)), plan.threads, plan.shared_bytes, stream, attributes, plan.cluster);
  attributes[config.numAttrs].id = cudaLaunchAttributeCooperative;
  attributes[config.numAttrs++].val.cooperative = 1;
  check(cudaLaunchKernelEx(&config, kernel_for(call.operand, plan.instance), launch), "launch");
  config = config_of(dim3(unsigned(call.slots), 2), replay_threads, int64_t(replay_shared(plan.layout)), stream,
                     attributes, 1);
  check(cudaLaunchKernelEx(&config, kernel_for(call.operand, instance_count), launch), "replay");
}

}  // namespace cuda
}  // namespace elmo_fast
