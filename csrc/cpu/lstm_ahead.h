// x W + B of the distinct rows of a chunk of steps, for one thread's tiles: made before the steps, or taken from the
// caller, and copied row by row to the gates of a step. Include after lstm_layout.h.
#pragma once

namespace {

template <class P>
class AheadProducts {
 public:
  AheadProducts(const LstmPlan& plan, const LstmDirection& direction, Team team, const P& product)
      : plan_(plan), d_(direction), team_(team), shape_(plan.shape), weights_(plan.shape), scratch_(plan, team.size),
        tiles_(weights_.tiles, team.rank, team.size), distinct_rows_(P::buffer_rows(plan.max_distinct)),
        product_(product) {}

  void make(const Chunk& chunk) const {
    if (plan_.multiplied) arrange(chunk);
    else multiply(chunk);
  }

  // Row `slot` of the chunk in one tile, fp32 [gate_width].
  void copy(int64_t tile, int64_t slot, float* to) const {
    const Value* row = place(tile) + slot * gate_width;
    for (int64_t k = 0; k < gate_width; k += Vec::width) Vec::store(to + k, P::Ahead::get(row + k));
  }

  // Prefetches what `copy` will read; a tile that is not there does no harm.
  void touch(int64_t tile, int64_t slot) const {
    const Value* row = place(tile) + slot * gate_width;
    for (int64_t k = 0; k < gate_width; k += 64 / int64_t(sizeof(Value))) __builtin_prefetch(row + k, 0, 2);
  }

 private:
  using Value = typename P::Ahead::Value;

  Value* place(int64_t tile) const {
    return reinterpret_cast<Value*>(d_.scratch + scratch_.ahead) + tile * distinct_rows_ * gate_width;
  }
  const float* bias(int64_t tile) const {
    return reinterpret_cast<const float*>(d_.packed + weights_.bias) + tile * gate_width;
  }

  void multiply(const Chunk& chunk) const {
    const Left<P> x = {d_.scratch + scratch_.x, shape_.input};
    const Blocks blocks = P::blocks(chunk.distinct_count);
    const Share mine(blocks.count, team_.rank, team_.size);
    for (int64_t b = mine.begin; b < mine.end; ++b) gather_block(chunk, x.block(blocks, b), blocks, b);
    barrier_wait(*team_.barrier);
    product_.begin(chunk.distinct_count);
    for (int64_t tile = tiles_.begin; tile < tiles_.end; ++tile) {
      const char* right = d_.packed + weights_.input + tile * weights_.input_tile;
      for (int64_t first = 0; first < gate_width; first += panel_width, right += panel_bytes<P>(shape_.input)) {
        const Start start = {bias(tile) + first, 0};
        if constexpr (std::is_same_v<typename P::Ahead, FloatRows>)
          multiply_panel(product_, x, blocks, right, start, place(tile) + first, gate_width);
        else
          multiply_rounded(x, blocks, right, start, place(tile) + first);
      }
    }
  }

  void gather_block(const Chunk& chunk, char* block, const Blocks& blocks, int64_t b) const {
    for (int r = 0; r < blocks.size(b); ++r) {
      const int64_t row = d_.distinct[chunk.distinct_begin + blocks.begin(b) + r];
      P::put_left(block, shape_.input, blocks.size(b), r, 0, shape_.input, d_.inputs + row * plan_.input_stride);
    }
  }

  // to [rows, panel_width, row stride gate_width] = start + x right, rounded to what P::Ahead holds.
  void multiply_rounded(const Left<P>& x, const Blocks& blocks, const char* right, Start start, Value* to) const {
    const size_t of_thread = scratch_.sums + scratch_.sums_bytes * static_cast<size_t>(team_.rank);
    float* sums = reinterpret_cast<float*>(d_.scratch + of_thread);
    multiply_panel(product_, x, blocks, right, start, sums, panel_width);
    for (int64_t r = 0; r < blocks.rows; ++r, sums += panel_width, to += gate_width)
      for (int64_t k = 0; k < panel_width; k += Vec::width) P::Ahead::put(Vec::load(sums + k), to + k);
  }

  // Products that the caller made, gate by gate, to this thread's tiles; the unused cells of the last tile zero.
  void arrange(const Chunk& chunk) const {
    for (int64_t tile = tiles_.begin; tile < tiles_.end; ++tile) {
      const int64_t cell = tile * Vec::width;
      const size_t bytes = sizeof(float) * static_cast<size_t>(smaller(Vec::width, shape_.dim - cell));
      Value* to = place(tile);
      float values[Vec::width] = {};
      for (int64_t r = 0; r < chunk.distinct_count; ++r, to += gate_width) {
        const float* row = d_.inputs + d_.distinct[chunk.distinct_begin + r] * plan_.input_stride + cell;
        for (int gate = 0; gate < 4; ++gate) {
          std::memcpy(values, row + gate * shape_.dim, bytes);
          P::Ahead::put(Vec::load(values), to + gate * Vec::width);
        }
      }
    }
  }

  const LstmPlan& plan_;
  const LstmDirection& d_;
  const Team team_;
  const LstmShape shape_;
  const WeightLayout<P> weights_;
  const ScratchLayout<P> scratch_;
  const Share tiles_;
  const int64_t distinct_rows_;
  const P& product_;
};

}  // namespace
