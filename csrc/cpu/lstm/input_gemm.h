// The input projections x W + B of the unique rows of a chunk of steps, for a thread's tiles: computed before the
// steps, and read row by row by the gates of a step.
#pragma once

#include "layout.h"

namespace elmo_fast::cpu {

template <class Gemm>
class InputGemm {
 protected:
  using Vec = typename Gemm::Vec;
  using Rows = typename Gemm::InputRows;
  using Value = typename Rows::Value;
  static constexpr int panel_width = Gemm::panel_width;
  static constexpr int64_t gate_width = 2 * panel_width;

  InputGemm(const LstmDirection& direction, Team team)
      : d_(direction), team_(team), shape_(d_.shape), scratch_(d_, team.size),
        tiles_(weights_.tiles, team.rank, team.size) {}

  void project_inputs(const Chunk& chunk) const {
    const Left<Gemm> x = {d_.scratch + scratch_.x, shape_.input};
    const Blocks blocks = Gemm::blocks(chunk.unique_count);
    x.gather(blocks, Partition(blocks.count, team_.rank, team_.size),
             [&](int64_t row) { return d_.unique_inputs[chunk.unique_begin + row]; });
    team_.barrier->wait();
    gemm_.begin(chunk.unique_count);
    if constexpr (Gemm::interleaves) {
      RoundedRows rows(*this);
      multiply_tiles(gemm_, x, blocks, d_.weights + weights_.input, tiles_, own_sums(), rows);
      finish_rows(rows);
    } else {
      const char* right = d_.weights + weights_.input + tiles_.begin * weights_.input_tile;
      for (int64_t tile = tiles_.begin; tile < tiles_.end; ++tile)
        for (int64_t first = 0; first < gate_width; first += panel_width, right += panel_bytes<Gemm>(shape_.input))
          multiply_panel(gemm_, x, blocks, right, {bias(tile) + first, 0}, projections(tile) + first, gate_width);
    }
  }

  float* floats(size_t offset) const { return reinterpret_cast<float*>(d_.scratch + offset); }

  // Projections of a tile, [unique rows of the chunk, gate_width].
  Value* projections(int64_t tile) const {
    return reinterpret_cast<Value*>(d_.scratch + scratch_.projections) + tile * scratch_.unique * gate_width;
  }

  // Prefetches a row. `tile` may be past the last tile.
  void prefetch_projections(int64_t tile, int64_t index) const {
    const Value* row = projections(tile) + index * gate_width;
    for (int64_t k = 0; k < gate_width; k += 64 / int64_t(sizeof(Value))) __builtin_prefetch(row + k, 0, 2);
  }

  float* own_sums() const { return floats(scratch_.sums) + scratch_.sums_floats * team_.rank; }

  const LstmDirection& d_;
  const Team team_;
  const LstmShape shape_;
  const ScratchLayout<Gemm> scratch_;
  const WeightLayout<Gemm>& weights_ = scratch_.w;
  const Partition tiles_;
  const Gemm gemm_{};

 private:
  const float* bias(int64_t tile) const {
    return reinterpret_cast<const float*>(d_.weights + weights_.bias) + tile * gate_width;
  }

  // The sums x W of a tile -> x W + B.
  struct RoundedRows : RowsBetween<Gemm> {
    const InputGemm& gemm;
    const float* bias = nullptr;
    Value* to = nullptr;
    explicit RoundedRows(const InputGemm& gemm_) : gemm(gemm_) {}

    void begin(int64_t tile) {
      bias = gemm.bias(tile);
      to = gemm.projections(tile);
    }

    template <int Number>
    void operator()(Quarter<Number>) {
      const auto gate = [this](int64_t k) { return this->sum(k) + Vec::load(bias + k * Vec::width); };
      if constexpr (Number % 2 == 0)
        Rows::put(gate(Number), gate(Number + 1), to + this->row * gate_width + Number * Vec::width);
      if constexpr (Number == 3) ++this->row;
    }
  };
};

}  // namespace elmo_fast::cpu
