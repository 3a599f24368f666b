// y = epilogue(x W + b).
//
// Packed: [panels, K] panels, then [panels, panel_width] bias. A highway panel has a vector of columns of Wc and the
// same columns of Wt. Threads split the rows, or the columns if there are few rows; results are bitwise equal.
#pragma once

#include "../engine.h"
#include "../gemm/fp32.h"

namespace elmo_fast::cpu {

template <class Gemm>
struct LinearLayout : Offsets {
  const LinearShape s;
  const int64_t columns_per_panel = s.epilogue == Epilogue::highway ? Gemm::Vec::width : Gemm::panel_width;
  const int64_t panels = divided_up(s.output, columns_per_panel);
  const size_t weights = take(panels * panel_bytes<Gemm>(s.input));
  const size_t bias = take_floats(panels * Gemm::panel_width);

  explicit LinearLayout(const LinearShape& shape) : s(shape) {}
};

// The two vectors of columns of a panel; weight[1] is the transform of a highway layer.
template <class Vec>
PanelSource linear_panel(const LinearShape& s, const float* const weight[2], int64_t panel) {
  if (s.epilogue != Epilogue::highway) return plain_panel<Vec>(weight[0], s.output, panel);
  const int64_t first = panel * Vec::width, columns = smaller(Vec::width, s.output - first);
  return {{weight[0] + first, weight[1] + first}, {columns, columns}, s.output};
}

template <class Gemm>
void linear_pack_all(const LinearShape& s, const LinearWeights& from, char* packed) {
  using Vec = typename Gemm::Vec;
  const LinearLayout<Gemm> layout(s);
  char* bias = packed + layout.bias;
  for (int64_t panel = 0; panel < layout.panels; ++panel, bias += float_bytes(Gemm::panel_width)) {
    pack_panel<Gemm>(linear_panel<Vec>(s, from.weight, panel), s.input, packed + panel * panel_bytes<Gemm>(s.input));
    Fp32Gemm<Vec>::pack_right(linear_panel<Vec>(s, from.bias, panel), 0, 1, bias);
  }
}

template <class Gemm>
size_t linear_scratch_bytes(const LinearCall& call) {
  const int64_t rows = Gemm::buffer_rows(smaller(call.rows, Gemm::cached_rows));
  return left_bytes<Gemm>(rows, call.shape.input) + aligned64(rows * Gemm::panel_width * int64_t(sizeof(float)));
}

template <class Gemm>
class LinearLoop {
  using Vec = typename Gemm::Vec;
  using F = typename Vec::F;
  static constexpr int panel_width = Gemm::panel_width;

 public:
  LinearLoop(const LinearCall& call, char* scratch)
      : call_(call), packed_(call.packed), shape_(call.shape), layout_(shape_), left_{scratch, shape_.input},
        sums_(reinterpret_cast<float*>(
            scratch + left_bytes<Gemm>(Gemm::buffer_rows(smaller(call_.rows, Gemm::cached_rows)), shape_.input))) {
    // Clear the columns beyond K: put_left need not write them, and they are multiplied by zero weights.
    if (Gemm::padded(1) > 1 && !Gemm::takes_units)
      std::memset(scratch, 0, static_cast<size_t>(reinterpret_cast<char*>(sums_) - scratch));
  }

  void run(const Partition& rows, const Partition& panels) {
    for (int64_t row = rows.begin; row < rows.end; row += Gemm::cached_rows) {
      const int64_t count = smaller(Gemm::cached_rows, rows.end - row);
      const Blocks blocks = Gemm::blocks(count);
      left_.gather(blocks, Partition(0, blocks.count), [&](int64_t r) { return x_at(row + r); });
      gemm_.begin(count);
      for (int64_t panel = panels.begin; panel < panels.end; ++panel) {
        multiply_panel(gemm_, left_, blocks, packed_ + panel * panel_bytes<Gemm>(shape_.input), {bias(panel), 0}, sums_,
                       panel_width);
        for (int64_t r = 0; r < count; ++r) finish_row(row + r, panel, r);
      }
    }
    gemm_.end();
  }

 private:
  const float* x_at(int64_t row) const { return call_.x + row * shape_.input; }
  const float* bias(int64_t panel) const {
    return reinterpret_cast<const float*>(packed_ + layout_.bias) + panel * panel_width;
  }

  // Applies the epilogue to row r of the sums and writes a row of y.
  void finish_row(int64_t row, int64_t panel, int64_t r) const {
    const int64_t first = panel * layout_.columns_per_panel;
    const int64_t count = smaller(layout_.columns_per_panel, shape_.output - first);
    float z[panel_width];
    for (int v = 0; v < 2; ++v) Vec::store(z + v * Vec::width, Vec::load(Gemm::sum_at(sums_, panel_width, r, v)));
    if (shape_.epilogue == Epilogue::highway) highway(z, x_at(row) + first, count);
    copy_floats(call_.y + row * shape_.output + first, z, count);
  }

  // z has a vector of x Wc + bc and a vector of x Wt + bt; the first is replaced by y.
  static void highway(float* z, const float* x, int64_t count) {
    float input[Vec::width] = {};
    copy_floats(input, x, count);
    const F gate = Gemm::Activations::sigmoid(Vec::load(z));
    const F transformed = Vec::at_least(Vec::set1(0.0f), Vec::load(z + Vec::width));
    const F rest = (Vec::set1(1.0f) - gate) * Vec::load(input);
    Vec::store(z, gate * transformed + rest);
  }

  const LinearCall& call_;
  const char* packed_;
  const LinearShape shape_;
  const LinearLayout<Gemm> layout_;
  const Left<Gemm> left_;
  float* const sums_;
  const Gemm gemm_{};
};

template <class Gemm>
void linear_run(const LinearCall& call, char* scratch, int rank) {
  const int64_t panels = LinearLayout<Gemm>(call.shape).panels;
  LinearLoop<Gemm> loop(call, scratch);
  if (call.rows >= 2 * Gemm::block_rows * call.threads)
    loop.run(Partition(call.rows, rank, call.threads), Partition(panels, 0, 1));
  else loop.run(Partition(call.rows, 0, 1), Partition(panels, rank, call.threads));
}

template <class Gemm>
constexpr LinearEngine linear_engine() {
  return {[](const LinearShape& s) { return LinearLayout<Gemm>(s).size; }, linear_pack_all<Gemm>,
          linear_scratch_bytes<Gemm>, linear_run<Gemm>};
}

}  // namespace elmo_fast::cpu
