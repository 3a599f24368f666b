// The contract of csrc/cuda: the projected LSTM of projected_lstm.h on NVIDIA GPUs as one persistent kernel, both
// directions of a layer and all time steps in one cooperative launch. fp16 operands, fp32 sums and cell state.
//
// A block owns some cells of both directions; its warps form two teams, one for each direction, so that the products of
// one direction hide the other's wait at the grid barrier. A fraction of the weights stays in registers and shared
// memory for the whole launch, the rest is streamed from L2. The order of sums depends only on the shape and the
// device: the bits of a slot's result do not depend on its batch mates. The host never waits. A wait of 10 s for other
// blocks ends the kernel with an error.
#pragma once

#include "cuda/plan.h"

namespace elmo_fast::cuda {

// Pointers are to device memory; outputs (`h`, `c`, `output`) alias nothing else.
struct Call {
  int32_t dim, projection;
  int32_t device_index;  // of CUDA
  Device device;
  const char* packed;  // weights in the order of csrc/cuda/plan.h, aligned to 16 bytes
  const uint16_t* z;  // [rows, 2, D, 4] fp16: input projections without the bias
  const float* scale;  // [rows, 2] factor of each row of z, or null
  int32_t steps, slots;  // steps >= 1, slots 1 to 64
  int32_t stride;  // >= slots, of meta and packed_rows
  const int32_t* meta;  // [steps + 1, 3, stride] row of z forward, backward; 1 where a sequence starts. The last
                        // step has no starts
  const int32_t* packed_rows;  // [steps, stride] row of `output`
  const int32_t* batch_sizes;  // [steps] slots that have a token; non-increasing, 1 to slots
  const float* initial_h;  // [2, P] state where a sequence starts; null: zeros
  const float* initial_c;  // [2, D]
  const float* h_in;  // [2, slots, P] state before the first step
  const float* c_in;  // [2, slots, D]
  float* h;  // final state of the slots that ran: direction d at d * state_stride rows
  float* c;
  int64_t state_stride;  // rows of P (of D) between the directions of h (of c)
  float* output;  // [S, 2P]
  float cell_clip, proj_clip;  // > 0, +inf: none
  char* scratch;  // Plan::scratch_bytes, aligned to 256; free once the stream has run the call
  void* stream;  // cudaStream_t
};

// Whether the module has machine code for a major compute capability; for others the driver translates.
bool has_code_for(int major);

// Also allows every kernel all of the device's shared memory: call it on a device before the first launch. Throws
// std::runtime_error where the kernels cannot run.
Device use_device(int index);

// Enqueues the launch. Throws std::invalid_argument for a layer that cannot run, std::runtime_error if CUDA refuses it.
void run_persistent(const Call& call);

}  // namespace elmo_fast::cuda
