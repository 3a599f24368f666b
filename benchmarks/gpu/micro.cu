// What the persistent kernel waits for, alone on the chip: barriers, exchanges, latencies; and how many clusters run at
// once. Prints a JSON object a line.
//
//     nvcc -std=c++17 -O3 -arch=native benchmarks/gpu/micro.cu -o micro && ./micro
#include <cstdio>
#include <cstdlib>

#include "../../csrc/cuda/device.cuh"

using namespace elmo_fast::cuda;

constexpr int threads = 256, repeats = 10000;

enum class Wait { grid_barrier, l2_load, cluster_exchange, multicast };

constexpr int copied = 1024;  // bytes of a multicast

// A load that no other access is ordered by.
ELMO_VALUE(asm volatile, uint32_t, load_relaxed(const uint32_t* from), "ld.relaxed.gpu.global.u32 %0, [%1];", "=r",
           "l"(from) : "memory")

// A barrier of all threads of all blocks of the cluster.
ELMO_DEVICE void sync_cluster() {
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}

// Waits so many times. `memory` is zeros: [0] counts arrivals, the rest is loaded; a load's address needs the value of
// the load before it.
template <Wait wait>
__global__ void __launch_bounds__(threads, 1) repeated(uint32_t* memory, int blocks, int cluster, int times) {
  // What the blocks of the cluster write, for even and odd steps, and a barrier for each.
  extern __shared__ __align__(16) char shared[];
  PhaseBarrier* barriers = reinterpret_cast<PhaseBarrier*>(shared + 2 * most_cluster * copied);
  const int thread = int(threadIdx.x), rank = int(blockIdx.x) % cluster;
  if (has_clusters && cluster > 1) {
    if (thread < 2) begin_phases(barriers + thread, 1);
    publish_barriers();
    sync_cluster();
  }
  uint32_t at = 0;
  for (uint32_t step = 1; step <= uint32_t(times); ++step) {
    if constexpr (wait == Wait::grid_barrier) {
      __syncthreads();
      if (thread == 0) {
        add_release(memory);
        while (int32_t(load_acquire(memory) - step * uint32_t(blocks)) < 0) continue;
      }
      __syncthreads();
    } else if constexpr (wait == Wait::l2_load) {
      if (thread == 0) at = load_relaxed(memory + 32 + at);
    } else if constexpr (!has_clusters) {
      return;
    } else {
      constexpr int bytes = wait == Wait::multicast ? copied : 16;
      PhaseBarrier* barrier = barriers + step % 2;
      char* place = shared + (int(step % 2) * cluster + rank) * bytes;
      __syncthreads();
      if (thread == 0) arrive_and_expect(barrier, cluster * bytes);
      if (wait == Wait::cluster_exchange && thread < cluster)
        store_remote(remote_address(place, thread), uint4(), remote_address(barrier, thread));
      if (wait == Wait::multicast && thread == 0) multicast(place, memory, bytes, barrier, cluster);
      wait_for_phase(barrier, (step - 1) / 2 % 2);
    }
  }
  if (has_clusters && cluster > 1) sync_cluster();
  if (at != 0) memory[32] = at;
}

void check(cudaError_t error, const char* doing) {
  if (error == cudaSuccess) return;
  fprintf(stderr, "%s: %s\n", doing, cudaGetErrorString(error));
  exit(1);
}

void print(const char* name, double value) {
  printf("{\"%s\": %.4g}\n", name, value);
  fflush(stdout);  // a later wait may hang
}

struct Config : cudaLaunchConfig_t {
  cudaLaunchAttribute own[2] = {};

  Config(int blocks, int cluster, size_t shared)
      : cudaLaunchConfig_t{dim3(unsigned(blocks)), dim3(threads), shared, nullptr, own, 1u + (cluster > 1)} {
    own[0].id = cudaLaunchAttributeCooperative;
    own[0].val.cooperative = 1;
    own[1].id = cudaLaunchAttributeClusterDimension;
    own[1].val.clusterDim = {unsigned(cluster), 1, 1};
  }
};

// Microseconds of one wait, by launches of `repeats` and twice as many; blocks fill the chip, one on a multiprocessor.
template <Wait wait>
void measure(const char* name, int blocks, int cluster, size_t shared, uint32_t* memory, size_t bytes) {
  float times[2];
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin), name);
  check(cudaEventCreate(&end), name);
  check(cudaFuncSetAttribute(repeated<wait>, cudaFuncAttributeMaxDynamicSharedMemorySize, int(shared)), name);
  const Config config(blocks, cluster, shared);
  for (int run = 0; run < 4; ++run) {  // the first two warm up
    check(cudaMemset(memory, 0, bytes), name);
    check(cudaEventRecord(begin), name);
    check(cudaLaunchKernelEx(&config, repeated<wait>, memory, blocks, cluster, repeats * (1 + run % 2)), name);
    check(cudaEventRecord(end), name);
    check(cudaEventSynchronize(end), name);
    check(cudaEventElapsedTime(&times[run % 2], begin, end), name);
  }
  print(name, (times[1] - times[0]) * 1e3 / repeats);
}

int main() {
  cudaDeviceProp device;
  check(cudaGetDeviceProperties(&device, 0), "device");
  const int processors = device.multiProcessorCount;
  const size_t shared = device.sharedMemPerBlockOptin, bytes = size_t(processors + 3) * 128;
  uint32_t* memory;
  check(cudaMalloc(&memory, bytes), "memory");
  print("multiprocessors", processors);
  int of_8 = 0;
  if (device.major >= 9) {
    const auto kernel = repeated<Wait::cluster_exchange>;
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(shared)), "clusters");
    for (int cluster = 2; cluster <= most_cluster; cluster *= 2) {
      Config config(processors / cluster * cluster, cluster, shared);
      config.attrs[0] = config.attrs[1], config.numAttrs = 1;  // as the project's plan asks
      check(cudaOccupancyMaxActiveClusters(&of_8, kernel, &config), "clusters");
      char name[] = "clusters_of_N";
      name[sizeof(name) - 2] = char('0' + cluster);
      print(name, of_8);
    }
  }
  measure<Wait::grid_barrier>("grid_barrier_us", processors, 1, shared, memory, bytes);
  measure<Wait::l2_load>("l2_load_us", processors, 1, shared, memory, bytes);
  if (of_8 == 0) return 0;
  const int blocks = of_8 * most_cluster;
  measure<Wait::cluster_exchange>("cluster_exchange_us", blocks, most_cluster, shared, memory, bytes);
  measure<Wait::multicast>("multicast_us", blocks, most_cluster, shared, memory, bytes);
}
