// The instances of the persistent kernel: what is fixed when it is compiled, by size of a block and number of slots.
#pragma once

#include "layout.h"

namespace elmo_fast {
namespace cuda {

// `most_threads` leaves a thread 255 registers (256 threads) or 168 (384). Beside the sums of `row_tiles` tiles of
// slots they hold `register_steps` k-steps of weights, 8 registers each, and `depth` more on their way from L2.
struct Instance {
  int most_threads, row_tiles, register_steps, depth;
};

constexpr Instance instances[] = {{256, 1, 16, 2}, {256, 2, 16, 2}, {256, 4, 7, 4}, {256, 8, 1, 4},
                                  {384, 1, 0, 6},  {384, 2, 0, 6},  {384, 4, 0, 3}};

// All zero where there is none.
inline Instance instance_for(int units_per_block, int slots) {
  const int threads = units_per_block * 2 * 32 * 2;
  for (const Instance& each : instances)
    if (threads <= each.most_threads && slots <= each.row_tiles * tile_slots) return each;
  return {};
}

}  // namespace cuda
}  // namespace elmo_fast
