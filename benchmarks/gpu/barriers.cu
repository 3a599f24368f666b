// What a barrier over all blocks of a launch costs, by several designs. Prints a line of JSON for each:
//   counter   csrc/cuda/grid_barrier.h, which tier C uses: every block adds to one counter and watches it
//   clusters  blocks of a cluster meet on the chip first, and one of them goes to the counter
//   flags     every block writes a word of its own; block 0 reads them all and lets everybody go
// Every wait is bounded. Before it is timed a design is checked: nobody goes on before everybody has come.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>

#include "../../csrc/cuda/device_block.h"
#include "../../csrc/cuda/grid_barrier.h"

using namespace elmo_fast::cuda;

namespace {

constexpr int64_t patience = 500 * 1000 * 1000;  // nanoseconds
constexpr int cluster_blocks = 8, checked = 64, timed = 4000, rounds = 5, most_blocks = threads;

struct Memory {
  BarrierMemory barrier;
  uint32_t go;
  uint32_t early;                 // times that somebody went on too soon
  uint32_t flags[most_blocks];
  uint32_t came[most_blocks];     // the generation that each block has reached
};

// False once a wait has lasted too long, here or in another block.
template <class Reached>
__device__ bool spin(const DeviceBlock& block, Memory* memory, Reached&& reached) {
  const int64_t begin = block.nanoseconds();
  while (!reached()) {
    if (block.load_relaxed(&memory->barrier.abort) != 0) return false;
    if (block.nanoseconds() - begin > patience) {
      block.store_relaxed(&memory->barrier.abort, 1u);
      return false;
    }
  }
  return true;
}

struct Counter {
  GridBarrier<DeviceBlock> barrier;
  __device__ Counter(Memory* memory, int blocks, uint32_t* verdict)
      : barrier(&memory->barrier, 0, uint32_t(blocks), patience, verdict) {}
  __device__ bool meet(DeviceBlock& block, Memory*, int, uint32_t) {
    barrier.arrive(block);
    return barrier.wait(block);
  }
};

struct Clusters {
  uint32_t leaders;
  __device__ Clusters(Memory*, int blocks, uint32_t*) : leaders(uint32_t(blocks / cluster_blocks)) {}
  __device__ bool meet(DeviceBlock& block, Memory* memory, int, uint32_t generation) {
    block.cluster_arrive();
    block.cluster_wait();
    if (int(blockIdx.x) % cluster_blocks == 0) {
      block.first_thread([&] {
        block.add_release(&memory->barrier.count, 1u);
        spin(block, memory, [&] { return block.load_acquire(&memory->barrier.count) >= generation * leaders; });
      });
    }
    block.cluster_arrive();
    block.cluster_wait();
    return block.load_relaxed(&memory->barrier.abort) == 0;
  }
};

struct Flags {
  __device__ Flags(Memory*, int, uint32_t*) {}
  __device__ bool meet(DeviceBlock& block, Memory* memory, int blocks, uint32_t generation) {
    const int me = int(threadIdx.x);
    block.sync();
    if (blockIdx.x == 0) {
      if (me > 0 && me < blocks)
        spin(block, memory, [&] { return block.load_acquire(&memory->flags[me]) >= generation; });
      block.sync();
      block.first_thread([&] { block.add_release(&memory->go, 1u); });
    } else {
      block.first_thread([&] {
        block.add_release(&memory->flags[blockIdx.x], 1u);
        spin(block, memory, [&] { return block.load_acquire(&memory->go) >= generation; });
      });
    }
    block.sync();
    return block.load_relaxed(&memory->barrier.abort) == 0;
  }
};

template <class Design>
__global__ void __launch_bounds__(threads) meetings(Memory* memory, int blocks, int generations, bool checks) {
  __shared__ uint32_t verdict;
  DeviceBlock block = {nullptr};
  Design design(memory, blocks, &verdict);
  for (uint32_t generation = 1; generation <= uint32_t(generations); ++generation) {
    if (checks) block.first_thread([&] { block.store_relaxed(&memory->came[blockIdx.x], generation); });
    if (!design.meet(block, memory, blocks, generation)) return;
    const int other = int(threadIdx.x);
    if (checks && other < blocks && block.load_relaxed(&memory->came[other]) < generation) atomicAdd(&memory->early, 1u);
  }
}

void check(cudaError_t error, const char* doing) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", doing, cudaGetErrorString(error));
  std::exit(1);
}

// Milliseconds of a launch, and what it left behind.
template <class Design>
float launch(Memory* memory, int blocks, bool in_clusters, int generations, bool checks, Memory* found) {
  check(cudaMemset(memory, 0, sizeof(Memory)), "clear");
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeCooperative;
  attributes[0].val.cooperative = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {unsigned(cluster_blocks), 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(unsigned(blocks));
  config.blockDim = dim3(threads);
  config.attrs = attributes;
  config.numAttrs = in_clusters ? 2 : 1;
  cudaEvent_t first, last;
  check(cudaEventCreate(&first), "event");
  check(cudaEventCreate(&last), "event");
  check(cudaEventRecord(first), "event");
  check(cudaLaunchKernelEx(&config, meetings<Design>, memory, blocks, generations, checks), "launch");
  check(cudaEventRecord(last), "event");
  check(cudaEventSynchronize(last), "run");
  float milliseconds;
  check(cudaEventElapsedTime(&milliseconds, first, last), "time");
  check(cudaMemcpy(found, memory, sizeof(Memory), cudaMemcpyDeviceToHost), "copy");
  return milliseconds;
}

template <class Design>
void measure(const char* name, Memory* memory, int blocks, bool in_clusters) {
  Memory found;
  launch<Design>(memory, blocks, in_clusters, checked, true, &found);
  const bool right = found.early == 0 && found.barrier.abort == 0;
  double best = 1e30;
  for (int round = 0; right && round < rounds; ++round) {
    const float few = launch<Design>(memory, blocks, in_clusters, timed / 4, false, &found);
    const float many = launch<Design>(memory, blocks, in_clusters, timed, false, &found);
    const double each = (double(many) - few) * 1e6 / (timed - timed / 4);
    if (each < best) best = each;
  }
  std::printf("{\"barrier\": \"%s\", \"blocks\": %d, \"passed\": %s, \"early\": %u, \"gave_up\": %s", name, blocks,
              right && found.barrier.abort == 0 ? "true" : "false", found.early, found.barrier.abort ? "true" : "false");
  if (right) std::printf(", \"ns\": %.1f", best);
  std::printf("}\n");
}

}  // namespace

int main() {
  int device, processors;
  check(cudaGetDevice(&device), "device");
  check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device), "processors");
  Memory* memory;
  check(cudaMalloc(&memory, sizeof(Memory)), "memory");
  const int all = smaller(processors, most_blocks), even = smaller(128, all / 16 * 16);
  for (int blocks : {all, even}) {
    measure<Counter>("counter", memory, blocks, false);
    measure<Flags>("flags", memory, blocks, false);
  }
  // whole clusters may not fill every processor: half of them is always there
  const int half = even / 2 / cluster_blocks * cluster_blocks;
  if (half > 0) {
    measure<Counter>("counter", memory, half, false);
    measure<Clusters>("clusters", memory, half, true);
  }
  return 0;
}
