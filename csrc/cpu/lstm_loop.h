// The time loop of one direction, run by every thread of its team. Include after lstm_layout.h and activations.h.
//
// Per chunk: x W + B of its distinct rows, or the caller's, laid out in tiles. Per step: gates and cells of this
// thread's tiles, barrier, projection of this thread's columns, which also writes the next step's h operand, barrier.
// A thread reads `ahead` and `c` only where it wrote them. Without a projection the cells write the next h operand and
// the second barrier falls away.
//
// With Keep the activations of the gates, the cells and m W_P before its clip stay in `kept`, where the gradients
// read them (backward_layout.h); the numbers are the same.
#pragma once

namespace {

template <class P, bool Keep = false>
class LstmLoop {
 public:
  LstmLoop(const LstmPlan& plan, const LstmDirection& direction, Team team)
      : plan_(plan), d_(direction), team_(team), shape_(plan.shape), weights_(plan.shape),
        tiles_(weights_.tiles, team.rank, team.size), panels_(weights_.panels, team.rank, team.size),
        scratch_(plan, team.size), distinct_rows_(P::buffer_rows(plan.max_distinct)),
        cell_limit_(Vec::set1(plan.cell_clip)), proj_limit_(Vec::set1(plan.proj_clip)) {}

  void run() {
    load_cells();
    if (team_.rank == 0) {
      clear_padding();
      first_h();
    }
    meet();
    for (int64_t k = 0; k < d_.chunk_count; ++k) {
      if (plan_.multiplied) arrange_products(d_.chunks[k]);
      else input_products(d_.chunks[k]);
      for (int64_t t = d_.chunks[k].step_begin; t < d_.chunks[k].step_end; ++t) step(t);
    }
    product_.end();
    store_cells();
  }

 private:
  void meet() const { barrier_wait(*team_.barrier); }
  float* floats(size_t offset) const { return reinterpret_cast<float*>(d_.scratch + offset); }
  const float* bias(int64_t tile) const {
    return reinterpret_cast<const float*>(d_.packed + weights_.bias) + tile * gate_width;
  }
  float* cells(int64_t tile) const { return floats(scratch_.c) + tile * plan_.lanes * Vec::width; }
  float* ahead(int64_t tile) const { return floats(scratch_.ahead) + tile * distinct_rows_ * gate_width; }
  float* own_gates() const {
    return floats(scratch_.gates + scratch_.gates_bytes * static_cast<size_t>(team_.rank));
  }
  float* gates([[maybe_unused]] int64_t t, [[maybe_unused]] int64_t tile) const {
    if constexpr (Keep) return d_.kept.gates + (tile * plan_.step_rows + plan_.begin[t]) * gate_width;
    else return own_gates();
  }
  int64_t cells_of(int64_t tile) const { return smaller(Vec::width, shape_.dim - tile * Vec::width); }
  Left<P> h_operand(int64_t t) const { return {d_.scratch + scratch_.h[t & 1], shape_.projection}; }
  Left<P> m_operand() const { return {d_.scratch + scratch_.m, shape_.dim}; }
  bool is_reset(int64_t t, int64_t lane) const { return plan_.reset && plan_.reset[plan_.begin[t] + lane]; }
  float* output_row(int64_t t, int64_t lane) const {
    const int64_t row = d_.out_rows[plan_.begin[t] + lane];
    return row < 0 ? nullptr : d_.output + row * 2 * shape_.projection;
  }

  // c [lanes, 2D] -> tiles, the unused cells of the last tile zero.
  void load_cells() {
    for (int64_t tile = tiles_.begin; tile < tiles_.end; ++tile)
      for (int64_t lane = 0; lane < plan_.lanes; ++lane) {
        float* to = cells(tile) + lane * Vec::width;
        Vec::store(to, Vec::set1(0.0f));
        std::memcpy(to, d_.c + lane * 2 * shape_.dim + tile * Vec::width, sizeof(float) * size_t(cells_of(tile)));
      }
  }

  void store_cells() {
    for (int64_t tile = tiles_.begin; tile < tiles_.end; ++tile)
      for (int64_t lane = 0; lane < plan_.lanes; ++lane)
        std::memcpy(d_.c + lane * 2 * shape_.dim + tile * Vec::width, cells(tile) + lane * Vec::width,
                    sizeof(float) * size_t(cells_of(tile)));
  }

  // Columns beyond k of left operands, which put_left never writes, multiply zero rows of weights.
  void clear_padding() const {
    if (P::padded(1) == 1) return;
    std::memset(d_.scratch + scratch_.x, 0, scratch_.ahead - scratch_.x);
    std::memset(d_.scratch + scratch_.h[0], 0, scratch_.c - scratch_.h[0]);
  }

  // The h operand of step 0; the others see it after the first barrier.
  void first_h() {
    for (int64_t lane = 0; lane < plan_.live[0]; ++lane)
      put_next_h(0, lane, 0, shape_.projection, d_.h + lane * 2 * shape_.projection);
  }

  // Columns [begin, begin + count) of lane's h become part of step t's operand, or its reset value does.
  void put_next_h(int64_t t, int64_t lane, int64_t begin, int64_t count, const float* h) {
    const Blocks blocks = P::blocks(plan_.live[t]);
    put_h_in(t, blocks, blocks.find(lane), lane, begin, count, h);
  }

  void put_h_in(int64_t t, const Blocks& blocks, int64_t b, int64_t lane, int64_t begin, int64_t count,
                const float* h) {
    const Left<P> left = h_operand(t);
    const float zeros[panel_width] = {};
    const int r = static_cast<int>(lane - blocks.begin(b));
    if (!is_reset(t, lane))
      return P::put_left(left.block(blocks, b), left.k, blocks.size(b), r, begin, count, h);
    for (int64_t k = 0; k < count; k += panel_width)
      P::put_left(left.block(blocks, b), left.k, blocks.size(b), r, begin + k, smaller(panel_width, count - k),
                  d_.reset_h ? d_.reset_h + begin + k : zeros);
  }

  void input_products(const Chunk& chunk) {
    const Left<P> x = {d_.scratch + scratch_.x, shape_.input};
    const Blocks blocks = P::blocks(chunk.distinct_count);
    const Share mine(blocks.count, team_.rank, team_.size);
    for (int64_t b = mine.begin; b < mine.end; ++b) gather_block(chunk, x.block(blocks, b), blocks, b);
    meet();
    product_.begin(chunk.distinct_count);
    for (int64_t tile = tiles_.begin; tile < tiles_.end; ++tile) {
      repeat_bias(tile, chunk.distinct_count);
      const char* right = d_.packed + weights_.input + tile * weights_.input_tile;
      for (int panel = 0; panel < 2; ++panel, right += panel_bytes<P>(shape_.input))
        multiply_panel(product_, x, blocks, right, ahead(tile) + panel * panel_width, gate_width);
    }
  }

  // Products that the caller made, gate by gate, to this thread's tiles; the unused cells of the last tile zero.
  void arrange_products(const Chunk& chunk) {
    for (int64_t tile = tiles_.begin; tile < tiles_.end; ++tile) {
      const int64_t cell = tile * Vec::width;
      const size_t bytes = sizeof(float) * static_cast<size_t>(cells_of(tile));
      float* to = ahead(tile);
      for (int64_t r = 0; r < chunk.distinct_count; ++r, to += gate_width) {
        const float* row = d_.inputs + d_.distinct[chunk.distinct_begin + r] * plan_.input_stride + cell;
        for (int gate = 0; gate < 4; ++gate) {
          Vec::store(to + gate * Vec::width, Vec::set1(0.0f));
          std::memcpy(to + gate * Vec::width, row + gate * shape_.dim, bytes);
        }
      }
    }
  }

  void gather_block(const Chunk& chunk, char* block, const Blocks& blocks, int64_t b) {
    for (int r = 0; r < blocks.size(b); ++r) {
      const int64_t row = d_.distinct[chunk.distinct_begin + blocks.begin(b) + r];
      P::put_left(block, shape_.input, blocks.size(b), r, 0, shape_.input, d_.inputs + row * plan_.input_stride);
    }
  }

  void repeat_bias(int64_t tile, int64_t rows) {
    float* to = ahead(tile);
    for (int64_t r = 0; r < rows; ++r, to += gate_width) std::memcpy(to, bias(tile), gate_width * sizeof(float));
  }

  void step(int64_t t) {
    if (plan_.reset) reset_cells(t);
    const Blocks blocks = P::blocks(plan_.live[t]);
    const Left<P> h = h_operand(t);
    product_.begin(plan_.live[t]);
    for (int64_t tile = tiles_.begin; tile < tiles_.end; ++tile) {
      gather_ahead(t, tile);
      const char* right = d_.packed + weights_.recurrent + tile * weights_.recurrent_tile;
      for (int panel = 0; panel < 2; ++panel, right += panel_bytes<P>(shape_.projection))
        multiply_panel(product_, h, blocks, right, gates(t, tile) + panel * panel_width, gate_width);
      for (int64_t b = 0; b < blocks.count; ++b) update_cells(t, tile, blocks, b);
    }
    meet();
    if (!weights_.panels) return;
    project(t, blocks);
    meet();
  }

  void reset_cells(int64_t t) {
    for (int64_t lane = 0; lane < plan_.live[t]; ++lane) {
      if (!is_reset(t, lane)) continue;
      for (int64_t tile = tiles_.begin; tile < tiles_.end; ++tile) {
        float* to = cells(tile) + lane * Vec::width;
        Vec::store(to, Vec::set1(0.0f));
        if (d_.reset_c)
          std::memcpy(to, d_.reset_c + tile * Vec::width, sizeof(float) * size_t(cells_of(tile)));
      }
    }
  }

  // gates [live, gate_width] = x W + B of the step's rows; the next tile's are on their way meanwhile.
  void gather_ahead(int64_t t, int64_t tile) {
    const int32_t* slot = d_.slots + plan_.begin[t];
    const float* from = ahead(tile);
    const int64_t next = distinct_rows_ * gate_width;
    float* to = gates(t, tile);
    for (int64_t lane = 0; lane < plan_.live[t]; ++lane, to += gate_width) {
      const float* row = from + slot[lane] * gate_width;
      for (int64_t k = 0; k < gate_width; k += 16) __builtin_prefetch(row + next + k, 0, 2);
      for (int64_t k = 0; k < gate_width; k += Vec::width) Vec::store(to + k, Vec::load(row + k));
    }
  }

  // Gates -> c, m of one block's rows in one tile. Two passes: the second waits for the first's long chain of
  // operations, and side by side with other rows' the waits overlap.
  void update_cells(int64_t t, int64_t tile, const Blocks& blocks, int64_t b) {
    const int64_t begin = blocks.begin(b), end = begin + blocks.size(b);
    float* const z = gates(t, tile);
    for (int64_t lane = begin; lane < end; ++lane)
      update_cell(z + lane * gate_width, cells(tile) + lane * Vec::width);
    if constexpr (Keep)
      std::memcpy(d_.kept.cells + (tile * plan_.step_rows + plan_.begin[t] + begin) * Vec::width,
                  cells(tile) + begin * Vec::width, sizeof(float) * size_t((end - begin) * Vec::width));
    float* const all_m = own_gates();
    for (int64_t lane = begin; lane < end; ++lane) {
      const Vec::F out = Vec::load(z + lane * gate_width + 3 * Vec::width);
      Vec::store(all_m + lane * gate_width, Vec::mul(out, tanh(Vec::load(cells(tile) + lane * Vec::width))));
    }
    for (int64_t lane = begin; lane < end; ++lane) {
      const float* m = all_m + lane * gate_width;
      const int64_t cell = tile * Vec::width;
      if (weights_.panels)
        P::put_left(m_operand().block(blocks, b), shape_.dim, blocks.size(b), static_cast<int>(lane - begin), cell,
                    cells_of(tile), m);
      else
        emit(t, lane, cell, cells_of(tile), m);
    }
  }

  // z [gate_width], c [vector] -> c, and sigmoid(o) in its place; with Keep all activations in theirs.
  void update_cell(float* z, float* c) const {
    const Vec::F forget = sigmoid(Vec::add(Vec::load(z + 2 * Vec::width), Vec::set1(1.0f)));
    const Vec::F input = sigmoid(Vec::load(z));
    const Vec::F candidate = tanh(Vec::load(z + Vec::width));
    const Vec::F fresh = Vec::mul(input, candidate);
    if constexpr (Keep) {
      Vec::store(z, input);
      Vec::store(z + Vec::width, candidate);
      Vec::store(z + 2 * Vec::width, forget);
    }
    Vec::store(c, clip(Vec::add(Vec::mul(forget, Vec::load(c)), fresh), cell_limit_));
    Vec::store(z + 3 * Vec::width, sigmoid(Vec::load(z + 3 * Vec::width)));
  }

  static Vec::F clip(Vec::F x, Vec::F limit) {
    return Vec::at_most(limit, Vec::at_least(Vec::sub(Vec::set1(0.0f), limit), x));
  }

  // Columns [begin, begin + count) of a lane's new h: to the state, the output and the next step.
  void emit(int64_t t, int64_t lane, int64_t begin, int64_t count, const float* h) {
    const size_t bytes = sizeof(float) * static_cast<size_t>(count);
    std::memcpy(d_.h + lane * 2 * shape_.projection + begin, h, bytes);
    if (float* out = output_row(t, lane)) std::memcpy(out + begin, h, bytes);
    if (t + 1 < plan_.steps && lane < plan_.live[t + 1]) put_next_h(t + 1, lane, begin, count, h);
  }

  // h = clip(m W_P) for this thread's columns, units of D outermost so that a unit of weights serves all rows.
  void project(int64_t t, const Blocks& blocks) {
    const Left<P> m = m_operand();
    const int64_t rows = plan_.live[t], panel_floats = P::buffer_rows(plan_.lanes) * panel_width;
    float* sums = floats(scratch_.projected);
    for (int64_t panel = panels_.begin; panel < panels_.end; ++panel)
      std::memset(sums + panel * panel_floats, 0, sizeof(float) * size_t(rows * panel_width));
    const char* right = d_.packed + weights_.projection;
    for (int64_t u = 0; u * P::unit < shape_.dim; ++u) {
      const int64_t bytes = unit_bytes<P>(shape_.dim, u);
      for (int64_t panel = panels_.begin; panel < panels_.end; ++panel)
        multiply_unit(product_, m, blocks, u * P::unit, right + panel * bytes, sums + panel * panel_floats,
                      panel_width);
      right += bytes * weights_.panels;
    }
    for (int64_t panel = panels_.begin; panel < panels_.end; ++panel)
      for (int64_t lane = 0; lane < rows; ++lane) emit_projected(t, lane, panel, sums + panel * panel_floats);
  }

  void emit_projected(int64_t t, int64_t lane, int64_t panel, float* sums) {
    float* h = sums + lane * panel_width;
    if constexpr (Keep)
      std::memcpy(d_.kept.projected + (panel * plan_.step_rows + plan_.begin[t] + lane) * panel_width, h,
                  panel_width * sizeof(float));
    Vec::store(h, clip(Vec::load(h), proj_limit_));
    Vec::store(h + Vec::width, clip(Vec::load(h + Vec::width), proj_limit_));
    emit(t, lane, panel * panel_width, smaller(panel_width, shape_.projection - panel * panel_width), h);
  }

  const LstmPlan& plan_;
  const LstmDirection& d_;
  const Team team_;
  const LstmShape shape_;
  const WeightLayout<P> weights_;
  const Share tiles_, panels_;
  const ScratchLayout<P> scratch_;
  const int64_t distinct_rows_;
  const Vec::F cell_limit_, proj_limit_;
  const P product_{};
};

template <class P, bool Keep = false>
void lstm_run_direction(const LstmPlan& plan, const LstmDirection& direction, Team team) {
  LstmLoop<P, Keep>(plan, direction, team).run();
}

template <class P>
LstmEngine lstm_engine() {
  return {lstm_packed_bytes<P>, lstm_pack_direction<P>, lstm_scratch_bytes<P>, lstm_run_direction<P>};
}

}  // namespace
