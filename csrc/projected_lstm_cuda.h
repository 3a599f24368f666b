// The LSTM of projected_lstm.h on CUDA devices, 16-bit operands, fp32 sums and cell state. This header is the
// contract; csrc/cuda implements it.
//
//   steps       tier B: one launch per step for both directions, and a small one that adds up the projection
//   persistent  tier C0: one cooperative launch per direction that keeps its weights in shared memory
//
// Both run the phases of csrc/cuda/*_phases.h, which add in an order that depends on the shape and the device alone:
// an output row has the same bits whatever else is in the call. Everything is enqueued on `stream`, nothing waits.
#pragma once

#include <cstddef>
#include <cstdint>

namespace elmo_fast {
namespace cuda {

// The type of weights, h and m inside products.
enum class Operand : int32_t { fp16 = 0, bf16 = 1 };

// How tier B adds up the projection's partial sums, in the same order: a kernel of its own, or whichever block
// comes last (one launch per step).
enum class Sums : int32_t { kernel = 0, last_block = 1 };

struct Shape {
  int32_t dim;         // D
  int32_t projection;  // P; equal to D when there is no W_P
};

struct Device {
  int32_t processors;  // streaming multiprocessors
  int64_t shared;      // bytes of shared memory one block may have
  int32_t cluster;     // most blocks of a cluster, 1: none
};

// How a layer is cut into blocks. `reason` is null, or says why the device cannot run it.
struct Plan {
  int32_t units_per_block;  // of 16 cells
  int32_t blocks;           // of one direction and one lane tile
  int32_t cluster;          // blocks that share their m; divides `blocks`
  int32_t lane_tiles;       // of 8 lanes, in one block
  int64_t shared;           // bytes of dynamic shared memory of a block
  int64_t scratch;          // bytes of device memory for `lanes` lanes
  const char* reason;
};

Plan plan_steps(const Shape& shape, const Device& device, int32_t lanes);
Plan plan_persistent(const Shape& shape, const Device& device, int32_t lanes);

// Bytes of the recurrent and projection weights and biases of both directions, packed.
size_t packed_size(const Shape& shape);

// On the host. weights[d] [P, 4D] is the part of W that multiplies h, biases[d] [4D], projections[d] [D, P] or null.
void pack(const Shape& shape, Operand operand, const float* const weights[2], const float* const biases[2],
          const float* const projections[2], void* packed, size_t size);

// Pointers are to device memory unless said otherwise; none may alias an output (`output`, `h`, `c`, `aborts`).
// Step-rows are numbered as in projected_lstm.h. Nothing here is read after the call returns but device memory.
struct Call {
  Shape shape;
  Device device;
  Operand operand;
  const void* packed;        // from pack, aligned to 16 bytes
  const float* products[2];  // [rows, 4D] x W_x of each direction, without the bias
  const int32_t* rows[2];    // [S] row of `products` at each step-row; null: its own number

  int32_t steps;             // T >= 1
  const int32_t* live;       // HOST [T], non-increasing, 1 <= live[t] <= lanes
  const int32_t* begin;      // [T + 1] first step-row of each step, then S; persistent only
  const uint8_t* reset;      // [S] or null
  const float* reset_h;      // [2P] or null (zeros)
  const float* reset_c;      // [2D] or null (zeros)

  float* output;             // [S, 2P] in step order
  int32_t lanes;
  const float* h_first;      // [lanes, 2P] initial state
  const float* c_first;      // [lanes, 2D]
  float* h;                  // [lanes, 2P] final state; lanes never live are left alone
  float* c;                  // [lanes, 2D]

  float cell_clip;           // > 0, +inf: none
  float proj_clip;
  void* scratch;             // Plan::scratch bytes, aligned to 256; free once the stream has passed the call
  size_t scratch_size;
  void* stream;              // cudaStream_t
};

// A launch that gives up waiting for its blocks is replayed, from h_first and c_first, by a kernel that is always
// enqueued and waits for nobody; `aborts` then grows by one. Where it is not 0 when a launch begins, that launch waits for
// nobody either: it ends at the first barrier that it does not find open.
struct Patience {
  int32_t* aborts;           // [1]
  int64_t nanoseconds;       // one wait at most
  uint32_t first_count;      // tests: where the barrier's counter starts
  int32_t absent_block;      // tests: the block that leaves before its first barrier, -1: none
};

// What the current device offers these kernels.
Device current_device();

// Throw std::invalid_argument on what does not fit together, std::runtime_error when CUDA refuses a launch.
void steps(const Call& call, Sums sums);
void persistent(const Call& call, const Patience& patience);

// Blocks of `plan` that the current device holds at once.
int32_t resident_blocks(const Plan& plan, Operand operand);

}  // namespace cuda
}  // namespace elmo_fast
