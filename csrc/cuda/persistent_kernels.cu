// Tier C0: kernels and their launches.
#include "launch.h"

namespace elmo_fast {
namespace cuda {
namespace {

template <class O, int NT>
__global__ void __launch_bounds__(threads, 1) persistent_kernel(const __grid_constant__ PersistentCall call) {
  extern __shared__ __align__(16) char shared[];
  DeviceBlock block = {shared};
  run_persistent<O, NT>(block, call, int(blockIdx.x));
}

template <class O>
__global__ void __launch_bounds__(threads) replay_kernel(const __grid_constant__ PersistentCall call) {
  extern __shared__ __align__(16) char shared[];
  DeviceBlock block = {shared};
  run_replay<O>(block, call, int(blockIdx.x));
}

__global__ void set_count(BarrierMemory* barrier, uint32_t count) { barrier->count = count; }

using PersistentKernel = void (*)(PersistentCall);

template <class O>
PersistentKernel persistent_kernel_of(int lane_tiles) {
  switch (lane_tiles) {
    case 1: return persistent_kernel<O, 1>;
    case 2: return persistent_kernel<O, 2>;
    default: return persistent_kernel<O, 4>;
  }
}

template <class O>
void run_direction(const Call& call, const Plan& plan, const Patience& patience, int d) {
  const PersistentCall mine = persistent_call(call, plan, patience, d);
  const Layout& layout = mine.direction.layout;
  const cudaStream_t stream = stream_of(call);
  const size_t cleared = PersistentScratch(layout, call.lanes, plan.blocks).cleared;
  check_cuda(cudaMemsetAsync(call.scratch, 0, cleared, stream), "clear");
  if (patience.first_count) Launch(dim3(1), 0, stream).run(set_count, mine.barrier, patience.first_count);
  const PersistentKernel kernel = persistent_kernel_of<O>(plan.lane_tiles);
  allow_shared(kernel, plan.shared);
  Launch(dim3(unsigned(plan.blocks)), plan.shared, stream).cooperative().run(kernel, mine);
  const int64_t shared = int64_t(SharedLayout(layout, plan.units_per_block, 1, 1, false).size);
  allow_shared(replay_kernel<O>, shared);
  Launch(dim3(unsigned(divided_up(call.lanes, replay_lanes))), shared, stream).run(replay_kernel<O>, mine);
}

}  // namespace

void persistent(const Call& call, const Patience& patience) {
  const Plan plan = plan_persistent(call.shape, call.device, call.lanes);
  check_call(call, plan);
  if (!call.begin || !patience.aborts || patience.nanoseconds < 0)
    throw std::invalid_argument("begin, aborts, nanoseconds: expected pointers and a time of 0 or more");
  for (int d = 0; d < 2; ++d) {
    if (call.operand == Operand::fp16)
      run_direction<Fp16>(call, plan, patience, d);
    else
      run_direction<Bf16>(call, plan, patience, d);
  }
}

int32_t resident_blocks(const Plan& plan, Operand operand) {
  const PersistentKernel kernel = operand == Operand::fp16 ? persistent_kernel_of<Fp16>(plan.lane_tiles)
                                                           : persistent_kernel_of<Bf16>(plan.lane_tiles);
  int device, processors, each;
  check_cuda(cudaGetDevice(&device), "device");
  check_cuda(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device), "processors");
  allow_shared(kernel, plan.shared);
  check_cuda(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, threads, size_t(plan.shared)), "occupancy");
  return each * processors;
}

}  // namespace cuda
}  // namespace elmo_fast
