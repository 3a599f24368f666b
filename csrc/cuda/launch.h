// What the launchers share.
#pragma once

#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

#include "calls.h"
#include "device_block.h"

namespace elmo_fast {
namespace cuda {

inline void check_cuda(cudaError_t error, const char* doing) {
  if (error == cudaSuccess) return;
  cudaGetLastError();
  throw std::runtime_error(std::string("CUDA: ") + doing + ": " + cudaGetErrorString(error));
}

inline cudaStream_t stream_of(const Call& call) { return static_cast<cudaStream_t>(call.stream); }

template <class Kernel>
void allow_shared(Kernel* kernel, int64_t bytes) {
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(bytes)), "shared memory");
}

// The attributes of one launch.
class Launch {
 public:
  Launch(dim3 grid, int64_t shared, cudaStream_t stream) {
    config_.gridDim = grid;
    config_.blockDim = dim3(threads);
    config_.dynamicSmemBytes = size_t(shared);
    config_.stream = stream;
    config_.attrs = attributes_;
  }

  Launch& in_clusters(int size) {
    if (size == 1) return *this;
    cudaLaunchAttribute& to = next(cudaLaunchAttributeClusterDimension);
    to.val.clusterDim.x = unsigned(size);
    to.val.clusterDim.y = to.val.clusterDim.z = 1;
    return *this;
  }

  // May start while the launch before it ends: `wait_for_launch_before` is in the kernel.
  Launch& early(bool yes) {
    if (yes) next(cudaLaunchAttributeProgrammaticStreamSerialization).val.programmaticStreamSerializationAllowed = 1;
    return *this;
  }

  Launch& cooperative() {
    next(cudaLaunchAttributeCooperative).val.cooperative = 1;
    return *this;
  }

  template <class... Parameters, class... Arguments>
  void run(void (*kernel)(Parameters...), const Arguments&... arguments) {
    check_cuda(cudaLaunchKernelEx(&config_, kernel, arguments...), "launch");
  }

 private:
  cudaLaunchAttribute& next(cudaLaunchAttributeID id) {
    cudaLaunchAttribute& attribute = attributes_[config_.numAttrs++];
    attribute.id = id;
    return attribute;
  }

  cudaLaunchConfig_t config_ = {};
  cudaLaunchAttribute attributes_[2] = {};
};

}  // namespace cuda
}  // namespace elmo_fast
