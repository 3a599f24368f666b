// y = epilogue(x W + b). Include after lstm_layout.h and activations.h.
//
// Packed: [panels, K] panels, then [panels, panel_width] bias. A highway panel holds one vector of Wc and the same
// columns of Wt. Many rows are split over the threads, few rows leave the columns to be split; neither changes bits.
#pragma once

namespace {

template <class P>
struct LinearLayout {
  int64_t columns_per_panel, panels;
  size_t bias, size;
  explicit LinearLayout(const LinearShape& s)
      : columns_per_panel(s.epilogue == Epilogue::highway ? Vec::width : panel_width),
        panels(divided_up(s.output, columns_per_panel)),
        bias(aligned64(panels * panel_bytes<P>(s.input))),
        size(bias + aligned64(panels * panel_width * static_cast<int64_t>(sizeof(float)))) {}
};

// The two vectors of columns of one panel; weight[1] is the transform of a highway layer.
inline PanelSource linear_panel(const LinearShape& s, const float* const weight[2], int64_t stride, int64_t panel) {
  if (s.epilogue != Epilogue::highway) {
    PanelSource source = plain_panel(weight[0], s.output, panel);
    source.stride = stride;
    return source;
  }
  const int64_t first = panel * Vec::width, columns = smaller(Vec::width, s.output - first);
  return {{weight[0] + first, weight[1] + first}, {columns, columns}, stride};
}

// The two vectors of one panel's bias, unused columns zero.
inline void pack_linear_bias(const PanelSource& from, bool there, char* packed) {
  std::memset(packed, 0, panel_width * sizeof(float));
  for (int v = 0; there && v < 2; ++v)
    for (int64_t col = 0; col < from.columns[v]; ++col)
      std::memcpy(packed + (v * Vec::width + col) * int64_t(sizeof(float)), from.start[v] + col, sizeof(float));
}

template <class P>
size_t linear_packed_bytes(const LinearShape& s) {
  return LinearLayout<P>(s).size;
}

template <class P>
void linear_pack_all(const LinearShape& s, const LinearWeights& from, char* packed) {
  const LinearLayout<P> layout(s);
  for (int64_t panel = 0; panel < layout.panels; ++panel) {
    pack_panel<P>(linear_panel(s, from.weight, s.output, panel), s.input, packed + panel * panel_bytes<P>(s.input));
    char* bias = packed + layout.bias + panel * panel_width * static_cast<int64_t>(sizeof(float));
    pack_linear_bias(linear_panel(s, from.bias, s.output, panel), from.bias[0] != nullptr, bias);
  }
}

template <class P>
size_t linear_scratch_bytes(const LinearCall& call) {
  const int64_t rows = P::buffer_rows(smaller(call.rows, P::cached_rows));
  return left_bytes<P>(rows, call.shape.input) + aligned64(rows * panel_width * int64_t(sizeof(float)));
}

template <class P>
class LinearLoop {
 public:
  LinearLoop(const LinearPlan& plan, char* scratch)
      : call_(plan.call), packed_(plan.packed), shape_(plan.call.shape), layout_(shape_),
        left_{scratch, shape_.input},
        sums_(reinterpret_cast<float*>(
            scratch + left_bytes<P>(P::buffer_rows(smaller(call_.rows, P::cached_rows)), shape_.input))) {
    // Columns beyond K, which put_left never writes, multiply zero rows of weights.
    if (P::padded(1) > 1) std::memset(scratch, 0, static_cast<size_t>(reinterpret_cast<char*>(sums_) - scratch));
  }

  void run(const Share& rows, const Share& panels) {
    for (int64_t row = rows.begin; row < rows.end; row += P::cached_rows) {
      const int64_t count = smaller(P::cached_rows, rows.end - row);
      const Blocks blocks = P::blocks(count);
      gather(row, blocks);
      product_.begin(count);
      for (int64_t panel = panels.begin; panel < panels.end; ++panel) {
        multiply_panel(product_, left_, blocks, packed_ + panel * panel_bytes<P>(shape_.input), {bias(panel), 0},
                       sums_, panel_width);
        for (int64_t r = 0; r < count; ++r) finish_row(row + r, panel, sums_ + r * panel_width);
      }
    }
    product_.end();
  }

 private:
  void gather(int64_t row, const Blocks& blocks) {
    for (int64_t b = 0; b < blocks.count; ++b)
      for (int r = 0; r < blocks.size(b); ++r)
        P::put_left(left_.block(blocks, b), left_.k, blocks.size(b), r, 0, left_.k,
                    call_.x + (row + blocks.begin(b) + r) * call_.x_stride);
  }

  const float* bias(int64_t panel) const {
    return reinterpret_cast<const float*>(packed_ + layout_.bias) + panel * panel_width;
  }

  void finish_row(int64_t row, int64_t panel, float* z) const {
    const int64_t first = panel * layout_.columns_per_panel;
    const int64_t count = smaller(layout_.columns_per_panel, shape_.output - first);
    if (shape_.epilogue == Epilogue::relu) relu(z);
    if (shape_.epilogue == Epilogue::highway) highway(z, call_.x + row * call_.x_stride + first, count);
    std::memcpy(call_.y + row * call_.y_stride + first, z, sizeof(float) * static_cast<size_t>(count));
  }

  static void relu(float* z) {
    Vec::store(z, Vec::at_least(Vec::set1(0.0f), Vec::load(z)));
    Vec::store(z + Vec::width, Vec::at_least(Vec::set1(0.0f), Vec::load(z + Vec::width)));
  }

  // z holds a vector of x Wc + bc and one of x Wt + bt; the first becomes y.
  static void highway(float* z, const float* x, int64_t count) {
    float carried[Vec::width] = {};
    std::memcpy(carried, x, sizeof(float) * static_cast<size_t>(count));
    const Vec::F gate = P::Activations::sigmoid(Vec::load(z));
    const Vec::F transformed = Vec::at_least(Vec::set1(0.0f), Vec::load(z + Vec::width));
    const Vec::F rest = Vec::mul(Vec::sub(Vec::set1(1.0f), gate), Vec::load(carried));
    Vec::store(z, Vec::add(Vec::mul(gate, transformed), rest));
  }

  const LinearCall& call_;
  const char* packed_;
  const LinearShape shape_;
  const LinearLayout<P> layout_;
  const Left<P> left_;
  float* const sums_;
  const P product_{};
};

template <class P>
void linear_run_share(const LinearPlan& plan, int rank, int size) {
  const int64_t rows = plan.call.rows, panels = LinearLayout<P>(plan.call.shape).panels;
  LinearLoop<P> loop(plan, plan.scratch + plan.scratch_size * static_cast<size_t>(rank));
  if (rows >= 2 * P::block_rows * size)
    loop.run(Share(rows, rank, size), Share(panels, 0, 1));
  else
    loop.run(Share(rows, 0, 1), Share(panels, rank, size));
}

template <class P>
LinearEngine linear_engine() {
  return {linear_packed_bytes<P>, linear_pack_all<P>, linear_scratch_bytes<P>, linear_run_share<P>};
}

}  // namespace
