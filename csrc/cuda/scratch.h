// Offsets in bytes into a call's scratch. h operands and control words are cleared before the first step, so that
// padding multiplies as zero.
#pragma once

#include "../projected_lstm_cuda.h"
#include "layout.h"

namespace elmo_fast {
namespace cuda {

constexpr int persistent_lanes = 32;

constexpr size_t scratch_aligned(size_t bytes) { return (bytes + 255) / 256 * 256; }

// Both directions.
struct StepScratch {
  size_t arrived;       // [2, lane tiles, cluster] uint32
  size_t h_operand[2];  // [2, lanes, h_width] 16-bit
  size_t cleared;       // bytes from 0 on
  size_t partials;      // [2, clusters, lanes, h_width] fp32
  size_t size;

  StepScratch(const Layout& layout, int lanes, int clusters, int cluster) {
    const size_t cells = 2 * size_t(lanes) * size_t(layout.h_width());
    arrived = 0;
    h_operand[0] = scratch_aligned(2 * size_t(divided_up(lanes, tile_lanes)) * size_t(cluster) * 4);
    h_operand[1] = h_operand[0] + scratch_aligned(cells * 2);
    cleared = h_operand[1] + scratch_aligned(cells * 2);
    partials = cleared;
    size = partials + (layout.projected() ? cells * size_t(clusters) * 4 : 0);
  }
};

// One direction; the other follows in the same memory.
struct PersistentScratch {
  size_t barrier;       // BarrierMemory
  size_t h_operand[2];  // [lanes, h_width] 16-bit
  size_t cleared;
  size_t partials;      // [blocks, lanes, h_width] fp32
  size_t size;

  PersistentScratch(const Layout& layout, int lanes, int blocks) {
    const size_t cells = size_t(lanes) * size_t(layout.h_width());
    barrier = 0;
    h_operand[0] = 256;
    h_operand[1] = h_operand[0] + scratch_aligned(cells * 2);
    cleared = h_operand[1] + scratch_aligned(cells * 2);
    partials = cleared;
    size = partials + (layout.projected() ? cells * size_t(blocks) * 4 : 0);
  }
};

}  // namespace cuda
}  // namespace elmo_fast
