// The time loop of one direction, run by every thread of its team. Include after lstm_ahead.h, lstm_cells.h and
// activations.h.
//
// Per chunk: x W + B of its distinct rows. Per step: gates and cells of this thread's tiles, barrier, projection of
// this thread's columns, which also writes the next step's h operand, barrier. A thread reads x W + B and cells only
// where it wrote them. Without a projection the cells write the next h operand and the second barrier falls away.
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
        scratch_(plan, team.size), ahead_(plan, direction, team, product_),
        cells_(plan, direction, tiles_, floats(scratch_.c)), cell_limit_(Vec::set1(plan.cell_clip)),
        proj_limit_(Vec::set1(plan.proj_clip)) {}

  void run() {
    cells_.load();
    if (team_.rank == 0) {
      clear_padding();
      first_h();
    }
    meet();
    for (int64_t k = 0; k < d_.chunk_count; ++k) {
      ahead_.make(d_.chunks[k]);
      for (int64_t t = d_.chunks[k].step_begin; t < d_.chunks[k].step_end; ++t) step(t);
    }
    product_.end();
    cells_.store();
  }

 private:
  void meet() const { barrier_wait(*team_.barrier); }
  float* floats(size_t offset) const { return reinterpret_cast<float*>(d_.scratch + offset); }
  // [lanes, gate_width]. Where products interleave, a tile's gates wait in one half while the next tile's are made in
  // the other.
  float* own_gates(int64_t tile = 0) const {
    const size_t half = P::interleaves ? static_cast<size_t>(tile & 1) * scratch_.gates_bytes / 2 : 0;
    return floats(scratch_.gates + scratch_.gates_bytes * static_cast<size_t>(team_.rank) + half);
  }
  float* gates([[maybe_unused]] int64_t t, [[maybe_unused]] int64_t tile) const {
    if constexpr (Keep) return d_.kept.gates + (tile * plan_.step_rows + plan_.begin[t]) * gate_width;
    else return own_gates(tile);
  }
  Left<P> h_operand(int64_t t) const { return {d_.scratch + scratch_.h[t & 1], shape_.projection}; }
  Left<P> m_operand() const { return {d_.scratch + scratch_.m, shape_.dim}; }
  int64_t slot(int64_t t, int64_t lane) const { return d_.slots[plan_.begin[t] + lane]; }
  bool is_reset(int64_t t, int64_t lane) const { return plan_.reset && plan_.reset[plan_.begin[t] + lane]; }
  float* output_row(int64_t t, int64_t lane) const {
    const int64_t row = d_.out_rows[plan_.begin[t] + lane];
    return row < 0 ? nullptr : d_.output + row * 2 * shape_.projection;
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

  void step(int64_t t) {
    for (int64_t lane = 0; plan_.reset && lane < plan_.live[t]; ++lane)
      if (is_reset(t, lane)) cells_.reset(lane);
    const Blocks blocks = P::blocks(plan_.live[t]);
    const Left<P> h = h_operand(t);
    product_.begin(plan_.live[t]);
    if constexpr (P::interleaves) make_cells_between(t, h, blocks);
    else make_cells(t, h, blocks);
    meet();
    if (!weights_.panels) return;
    project(t, blocks);
    meet();
  }

  // Gates and cells of this thread's tiles, one tile after the other.
  void make_cells(int64_t t, const Left<P>& h, const Blocks& blocks) {
    const Nothing nothing;
    for (int64_t tile = tiles_.begin; tile < tiles_.end; ++tile) {
      gather_ahead(t, tile);
      multiply_gates(t, tile, h, blocks, nothing);
      for (int64_t b = 0; b < blocks.count; ++b) update_cells(t, tile, blocks, b);
    }
  }

  // The same with each tile's cells made between the parts of the next tile's product.
  void make_cells_between(int64_t t, const Left<P>& h, const Blocks& blocks) {
    for (int64_t tile = tiles_.begin; tile < smaller(tiles_.begin + 2, tiles_.end); ++tile) gather_ahead(t, tile);
    LaneByLane last(*this, t, tiles_.begin, blocks, 0);
    for (int64_t tile = tiles_.begin; tile < tiles_.end; ++tile) {
      multiply_gates(t, tile, h, blocks, last);
      last.finish();
      last = LaneByLane(*this, t, tile, blocks, plan_.live[t]);
    }
    last.finish();
  }

  template <class Between>
  void multiply_gates(int64_t t, int64_t tile, const Left<P>& h, const Blocks& blocks, Between& between) {
    const char* right = d_.packed + weights_.recurrent + tile * weights_.recurrent_tile;
    for (int panel = 0; panel < 2; ++panel, right += panel_bytes<P>(shape_.projection)) {
      float* const sums = gates(t, tile) + panel * panel_width;
      multiply_panel(product_, h, blocks, right, {sums, gate_width}, sums, gate_width, between);
    }
  }

  // gates [live, gate_width] = x W + B of the step's rows; the next tile's are on their way meanwhile.
  void gather_ahead(int64_t t, int64_t tile) {
    for (int64_t lane = 0; lane < plan_.live[t]; ++lane) {
      ahead_.touch(tile + 1, slot(t, lane));
      ahead_.copy(tile, slot(t, lane), gates(t, tile) + lane * gate_width);
    }
  }

  // Gates -> c, m of one block's rows in one tile. Two passes: the second waits for the first's long chain of
  // operations, and side by side with other rows' the waits overlap.
  void update_cells(int64_t t, int64_t tile, const Blocks& blocks, int64_t b) {
    const int64_t begin = blocks.begin(b), end = begin + blocks.size(b);
    float* const z = gates(t, tile);
    for (int64_t lane = begin; lane < end; ++lane)
      update_cell(z + lane * gate_width, cells_.at(tile, lane));
    if constexpr (Keep)
      std::memcpy(d_.kept.cells + (tile * plan_.step_rows + plan_.begin[t] + begin) * Vec::width,
                  cells_.at(tile, begin), sizeof(float) * size_t((end - begin) * Vec::width));
    float* const all_m = own_gates();
    for (int64_t lane = begin; lane < end; ++lane) {
      const Vec::F out = Vec::load(z + lane * gate_width + 3 * Vec::width);
      const Vec::F squashed = P::Activations::tanh(Vec::load(cells_.at(tile, lane)));
      Vec::store(all_m + lane * gate_width, Vec::mul(out, squashed));
    }
    for (int64_t lane = begin; lane < end; ++lane) take_m(t, tile, blocks, b, lane, all_m + lane * gate_width);
  }

  // m [vector] of a lane in block b: to the projection's operand, or as h.
  void take_m(int64_t t, int64_t tile, const Blocks& blocks, int64_t b, int64_t lane, const float* m) {
    const int64_t cell = tile * Vec::width;
    if (weights_.panels)
      P::put_left(m_operand().block(blocks, b), shape_.dim, blocks.size(b), static_cast<int>(lane - blocks.begin(b)),
                  cell, cells_.count(tile), m);
    else
      emit(t, lane, cell, cells_.count(tile), m);
  }

  // Gates -> c, m of one tile, some lanes each time it is called, between the parts of the next tile's product. The
  // place of a lane's gates then takes those of the tile after.
  class LaneByLane {
   public:
    LaneByLane(LstmLoop& loop, int64_t t, int64_t tile, const Blocks& blocks, int64_t lanes)
        : loop_(&loop), t_(t), tile_(tile), blocks_(&blocks), lanes_(lanes),
          at_once_(divided_up(lanes, 2 * blocks.count * P::parts(loop.shape_.projection))) {}

    void operator()() {
      for (int64_t k = 0; k < at_once_ && lane_ < lanes_; ++k) update();
    }

    void finish() {
      while (lane_ < lanes_) update();
    }

   private:
    void update() {
      LstmLoop& loop = *loop_;
      float* const z = loop.gates(t_, tile_) + lane_ * gate_width;
      float* const c = loop.cells_.at(tile_, lane_);
      loop.update_cell(z, c);
      Vec::store(z, Vec::mul(Vec::load(z + 3 * Vec::width), P::Activations::tanh(Vec::load(c))));
      loop.take_m(t_, tile_, *blocks_, blocks_->find(lane_), lane_, z);
      if (tile_ + 2 < loop.tiles_.end) {
        loop.ahead_.copy(tile_ + 2, loop.slot(t_, lane_), z);
        loop.ahead_.touch(tile_ + 3, loop.slot(t_, lane_));
      }
      ++lane_;
    }

    LstmLoop* loop_;
    int64_t t_, tile_;
    const Blocks* blocks_;
    int64_t lanes_, at_once_, lane_ = 0;
  };

  // z [gate_width], c [vector] -> c, and sigmoid(o) in its place; with Keep all activations in theirs.
  void update_cell(float* z, float* c) const {
    const Vec::F forget = P::Activations::sigmoid(Vec::add(Vec::load(z + 2 * Vec::width), Vec::set1(1.0f)));
    const Vec::F input = P::Activations::sigmoid(Vec::load(z));
    const Vec::F candidate = P::Activations::tanh(Vec::load(z + Vec::width));
    const Vec::F fresh = Vec::mul(input, candidate);
    if constexpr (Keep) {
      Vec::store(z, input);
      Vec::store(z + Vec::width, candidate);
      Vec::store(z + 2 * Vec::width, forget);
    }
    Vec::store(c, clip(Vec::add(Vec::mul(forget, Vec::load(c)), fresh), cell_limit_));
    Vec::store(z + 3 * Vec::width, P::Activations::sigmoid(Vec::load(z + 3 * Vec::width)));
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
    const float zeros[panel_width] = {};
    float* sums = floats(scratch_.projected);
    const char* right = d_.packed + weights_.projection;
    for (int64_t u = 0; u * P::unit < shape_.dim; ++u) {
      const int64_t bytes = unit_bytes<P>(shape_.dim, u);
      for (int64_t panel = panels_.begin; panel < panels_.end; ++panel) {
        float* const of_panel = sums + panel * panel_floats;
        multiply_unit(product_, m, blocks, u * P::unit, right + panel * bytes,
                      u ? Start{of_panel, panel_width} : Start{zeros, 0}, of_panel, panel_width);
      }
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
  const P product_{};
  const AheadProducts<P> ahead_;
  const CellTiles cells_;
  const Vec::F cell_limit_, proj_limit_;
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
