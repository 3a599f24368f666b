// y = epilogue(x W + b). Include after packed_product.h and activations.h.
//
// Packed: [panels, K] panels, then [panels, panel_width] bias. A highway panel holds one vector of Wc and the same
// columns of Wt. Many rows are split over the threads, few rows leave the columns to be split; neither changes bits.
#pragma once

namespace {

constexpr int64_t linear_rows_at_once = 448;

struct LinearLayout {
  int64_t columns_per_panel, panels;
  size_t bias, size;
  explicit LinearLayout(const LinearShape& s)
      : columns_per_panel(s.epilogue == Epilogue::highway ? Vec::width : panel_width),
        panels(divided_up(s.output, columns_per_panel)),
        bias(aligned64(panels * panel_bytes<Fp32Product>(s.input))),
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

inline size_t linear_packed_bytes(const LinearShape& s) { return LinearLayout(s).size; }

inline void linear_pack_all(const LinearShape& s, const LinearWeights& from, char* packed) {
  const LinearLayout layout(s);
  for (int64_t panel = 0; panel < layout.panels; ++panel) {
    pack_panel<Fp32Product>(linear_panel(s, from.weight, s.output, panel), s.input,
                            packed + panel * panel_bytes<Fp32Product>(s.input));
    char* bias = packed + layout.bias + panel * panel_width * static_cast<int64_t>(sizeof(float));
    if (from.bias[0]) Fp32Product::pack_right(linear_panel(s, from.bias, s.output, panel), 0, 1, bias);
    else std::memset(bias, 0, panel_width * sizeof(float));
  }
}

inline size_t linear_scratch_bytes(const LinearCall& call) {
  const int64_t rows = smaller(call.rows, linear_rows_at_once);
  return left_bytes<Fp32Product>(rows, call.shape.input) +
         aligned64(rows * panel_width * static_cast<int64_t>(sizeof(float)));
}

class LinearLoop {
 public:
  LinearLoop(const LinearPlan& plan, char* scratch)
      : call_(plan.call), packed_(plan.packed), shape_(plan.call.shape), layout_(shape_),
        left_{scratch, shape_.input},
        sums_(reinterpret_cast<float*>(
            scratch + left_bytes<Fp32Product>(smaller(call_.rows, linear_rows_at_once), shape_.input))) {}

  void run(const Share& rows, const Share& panels) {
    for (int64_t row = rows.begin; row < rows.end; row += linear_rows_at_once) {
      const int64_t count = smaller(linear_rows_at_once, rows.end - row);
      const Blocks blocks = Fp32Product::blocks(count);
      gather(row, blocks);
      for (int64_t panel = panels.begin; panel < panels.end; ++panel) {
        repeat_bias(panel, count);
        multiply_panel(product_, left_, blocks, packed_ + panel * panel_bytes<Fp32Product>(shape_.input), sums_,
                       panel_width);
        for (int64_t r = 0; r < count; ++r) finish_row(row + r, panel, sums_ + r * panel_width);
      }
    }
  }

 private:
  void gather(int64_t row, const Blocks& blocks) {
    for (int64_t b = 0; b < blocks.count; ++b)
      for (int r = 0; r < blocks.size(b); ++r)
        Fp32Product::put_left(left_.block(blocks, b), left_.k, blocks.size(b), r, 0, left_.k,
                              call_.x + (row + blocks.begin(b) + r) * call_.x_stride);
  }

  void repeat_bias(int64_t panel, int64_t rows) {
    const char* bias = packed_ + layout_.bias + panel * panel_width * static_cast<int64_t>(sizeof(float));
    for (int64_t r = 0; r < rows; ++r) std::memcpy(sums_ + r * panel_width, bias, panel_width * sizeof(float));
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
    const Vec::F gate = sigmoid(Vec::load(z));
    const Vec::F transformed = Vec::at_least(Vec::set1(0.0f), Vec::load(z + Vec::width));
    const Vec::F rest = Vec::mul(Vec::sub(Vec::set1(1.0f), gate), Vec::load(carried));
    Vec::store(z, Vec::add(Vec::mul(gate, transformed), rest));
  }

  const LinearCall& call_;
  const char* packed_;
  const LinearShape shape_;
  const LinearLayout layout_;
  const Left<Fp32Product> left_;
  float* const sums_;
  const Fp32Product product_;
};

inline void linear_run_share(const LinearPlan& plan, int rank, int size) {
  const int64_t rows = plan.call.rows, panels = LinearLayout(plan.call.shape).panels;
  LinearLoop loop(plan, plan.scratch + plan.scratch_size * static_cast<size_t>(rank));
  if (rows >= 2 * Fp32Product::block_rows * size)
    loop.run(Share(rows, rank, size), Share(panels, 0, 1));
  else
    loop.run(Share(rows, 0, 1), Share(panels, rank, size));
}

}  // namespace
