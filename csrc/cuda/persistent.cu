// The persistent kernel's instances and their launch.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <utility>

#include "persistent.cuh"

namespace elmo_fast::cuda {
namespace {

using Kernel = void (*)(Launch);

constexpr int built_for[] = {__CUDA_ARCH_LIST__};  // 900 is compute capability 9.0

void check(cudaError_t error, const char* doing) {
  if (error != cudaSuccess) throw std::runtime_error(std::string("CUDA: ") + doing + ": " + cudaGetErrorString(error));
}

template <size_t... at>
std::array<Kernel, instance_count> kernels_of(std::index_sequence<at...>) {
  return {persistent_kernel<instances[at].row_tiles, instances[at].register_steps, instances[at].depth,
                            instances[at].most_threads>...};
}

// The kernels by instance.
std::array<Kernel, instance_count> kernels() { return kernels_of(std::make_index_sequence<instance_count>()); }

struct Config : cudaLaunchConfig_t {
  cudaLaunchAttribute own[2] = {};

  Config(dim3 grid, int threads, int64_t shared, void* on, int cluster, bool cooperative)
      : cudaLaunchConfig_t{grid, dim3(unsigned(threads)), size_t(shared), static_cast<cudaStream_t>(on), own, 0} {
    if (cluster > 1) {
      own[numAttrs].id = cudaLaunchAttributeClusterDimension;
      own[numAttrs++].val.clusterDim = {unsigned(cluster), 1, 1};
    }
    own[numAttrs].id = cudaLaunchAttributeCooperative;
    own[numAttrs].val.cooperative = cooperative;
    numAttrs += cooperative;
  }
};

}  // namespace

bool has_code_for(int major) {
  return std::any_of(std::begin(built_for), std::end(built_for), [&](int of) { return of / 100 == major; });
}

Device use_device(int index) {
  cudaDeviceProp has;
  int has_mps = 0;
  check(cudaSetDevice(index), "device");
  check(cudaGetDeviceProperties(&has, index), "device properties");
  const char* pipes = std::getenv("CUDA_MPS_PIPE_DIRECTORY");
  // cudaDevAttrMpsEnabled, which drivers before 545 do not know: whether MPS has its pipes tells there.
  if (cudaDeviceGetAttribute(&has_mps, cudaDeviceAttr(133), index) != cudaSuccess)
    has_mps = access(pipes ? pipes : "/tmp/nvidia-mps", F_OK) == 0;
  if (has_mps)
    throw std::runtime_error("the processes of MPS share the device, and all blocks of a launch have to run at once");
  if (has.major == 12 && !has_code_for(12))  // before the code is loaded, which would reserve 3.5 GB (device.cuh)
    throw std::runtime_error("compute capability 12 needs an installation that nvcc 12.9 or newer has built");
  Device device = {has.multiProcessorCount, int64_t(has.sharedMemPerBlockOptin), {}};
  const Kernel first = kernels()[0];
  cudaFuncAttributes of;
  check(cudaFuncGetAttributes(&of, first), "kernel for this device");
  for (const Kernel kernel : kernels())
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(has.sharedMemPerBlockOptin)),
          "shared memory");
  if (of.ptxVersion < 90 || of.ptxVersion >= 120) return device;  // the code that runs has no clusters
  for (int j = 0; j < 3; ++j) {
    const int cluster = 8 >> j;
    const Config config(dim3(unsigned(device.processors / cluster * cluster)), instances[0].most_threads, device.shared,
                        nullptr, cluster, false);
    check(cudaOccupancyMaxActiveClusters(&device.clusters[j], first, &config), "clusters");
  }
  return device;
}

void run_persistent(const Call& call) {
  const Plan plan = plan_persistent(call.dim, call.projection, call.device, call.slots);
  if (plan.reason) throw std::invalid_argument(std::string("plan: ") + plan.reason);
  const Scratch at(plan, call.slots);
  Launch launch = {call, plan, SharedLayout(plan)};
  launch.barriers = reinterpret_cast<Barrier*>(call.scratch);
  launch.operands = reinterpret_cast<uint16_t*>(call.scratch + at.operands);
  launch.partials = reinterpret_cast<float*>(call.scratch + at.partials);
  check(cudaSetDevice(call.device_index), "device");
  const Config steps(dim3(unsigned(plan.blocks)), plan.threads, plan.shared_bytes, call.stream, plan.cluster, true);
  check(cudaMemsetAsync(call.scratch, 0, at.partials, steps.stream), "clear");
  check(cudaLaunchKernelEx(&steps, kernels()[size_t(plan.instance)], launch), "launch");
}

}  // namespace elmo_fast::cuda
