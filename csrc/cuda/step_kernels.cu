// Tier B: kernels and their launches.
#include "launch.h"

namespace elmo_fast {
namespace cuda {
namespace {

constexpr int sum_blocks = 128;  // of one direction at most
constexpr int64_t sum_shared = threads * sizeof(float);

// Weights on their way in registers: steps along K that the sums leave room for.
template <int NT>
constexpr int depth = NT <= 2 ? 8 : 4;

template <class O, int NT>
__global__ void __launch_bounds__(threads, 1) step_kernel(const __grid_constant__ StepCall call) {
  extern __shared__ __align__(16) char shared[];
  DeviceBlock block = {shared};
  const int index = int(blockIdx.x);
  run_step<O, NT, depth<NT>>(block, call, int(blockIdx.z), int(blockIdx.y), index, index % call.cluster);
}

template <class O>
__global__ void __launch_bounds__(threads) sum_kernel(const __grid_constant__ StepCall call) {
  extern __shared__ __align__(16) char shared[];
  DeviceBlock block = {shared};
  run_sums<O>(block, call, int(blockIdx.y), int(blockIdx.x), int(gridDim.x));
}

using StepKernel = void (*)(StepCall);

template <class O>
StepKernel step_kernel_of(int lane_tiles) {
  switch (lane_tiles) {
    case 1: return step_kernel<O, 1>;
    case 2: return step_kernel<O, 2>;
    case 4: return step_kernel<O, 4>;
    default: return step_kernel<O, 8>;
  }
}

template <class O>
class Stepper {
 public:
  Stepper(const Call& call, const Plan& plan, Sums sums)
      : call_(call), plan_(plan), step_(step_call(call, plan, sums)) {}

  void run() {
    check_cuda(cudaMemsetAsync(call_.scratch, 0, cleared(), stream_of(call_)), "clear");
    for (int t = 0; t < call_.steps; ++t) {
      step_.now.step = t;
      step_.now.live = call_.live[t];
      step_.now.first = t == 0;
      launch_step();
      if (step_.direction[0].layout.projected() && !step_.arrived) launch_sums();
      step_.now.begin += call_.live[t];
    }
  }

 private:
  size_t cleared() const {
    return StepScratch(step_.direction[0].layout, call_.lanes, plan_.blocks / plan_.cluster, plan_.cluster).cleared;
  }
  bool overlaps() const { return call_.device.cluster > 1; }  // sm_90 code is what runs

  void launch_step() {
    int tiles = plan_.lane_tiles;
    while (tiles > 1 && tiles * tile_lanes / 2 >= step_.now.live) tiles /= 2;
    const SharedLayout shared(step_.direction[0].layout, plan_.units_per_block, plan_.cluster, tiles, false);
    const StepKernel kernel = step_kernel_of<O>(tiles);
    if (tiles != allowed_) allow_shared(kernel, int64_t(shared.size));
    allowed_ = tiles;
    const dim3 grid(unsigned(plan_.blocks), unsigned(divided_up(step_.now.live, tiles * tile_lanes)), 2);
    Launch(grid, int64_t(shared.size), stream_of(call_))
        .in_clusters(plan_.cluster)
        .early(overlaps() && !step_.now.first)
        .run(kernel, step_);
  }

  void launch_sums() {
    const int needed = divided_up(step_.now.live * (step_.direction[0].layout.h_width() / 8), 8);
    Launch(dim3(unsigned(smaller(needed, sum_blocks)), 2), sum_shared, stream_of(call_))
        .early(overlaps())
        .run(sum_kernel<O>, step_);
  }

  const Call& call_;
  const Plan plan_;
  StepCall step_;
  int allowed_ = 0;
};

}  // namespace

Device current_device() {
  int device, processors, shared;
  cudaFuncAttributes attributes;
  check_cuda(cudaGetDevice(&device), "device");
  check_cuda(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device), "processors");
  check_cuda(cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "shared memory");
  check_cuda(cudaFuncGetAttributes(&attributes, step_kernel<Fp16, 1>), "kernel for this device");
  return {processors, shared, attributes.ptxVersion >= 90 ? 8 : 1};
}

void steps(const Call& call, Sums sums) {
  const Plan plan = plan_steps(call.shape, call.device, call.lanes);
  check_call(call, plan);
  if (call.operand == Operand::fp16)
    Stepper<Fp16>(call, plan, sums).run();
  else
    Stepper<Bf16>(call, plan, sums).run();
}

}  // namespace cuda
}  // namespace elmo_fast
