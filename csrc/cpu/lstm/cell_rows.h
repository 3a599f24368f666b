// The cells of a step if products interleave: a tile's rows are computed between the dots of the next tile's product.
#pragma once

#include "../gemm/packing.h"

namespace elmo_fast::cpu {

// h W_h of a tile, to which x W + B is added in registers -> c, m. The last quarter computes m of the previous row,
// whose c is ready: with tanh(c) directly after c, a row's dependency chain would take longer than its dots.
template <class Gemm, class Loop>
class CellRows : public RowsBetween<Gemm> {
  using Base = RowsBetween<Gemm>;
  using Vec = typename Gemm::Vec;
  using F = typename Vec::F;
  using Activations = typename Gemm::Activations;
  using Inputs = typename Gemm::InputRows;

 public:
  using Base::gate_width, Base::row, Base::rows;

  CellRows(Loop& loop, int64_t t) : loop_(loop), t_(t), unique_index_(loop.d_.unique_index + loop.d_.row_begin[t]) {}

  void begin(int64_t tile) {
    tile_ = tile;
    inputs_ = loop_.projections(tile);
    cells_ = loop_.cells(tile, 0);
    count_ = loop_.cell_count(tile);
    m_operand_ = loop_.m_operand(tile * Vec::width);
    m_values_ = loop_.m_values(tile * Vec::width);
    m_column_ = tile * Vec::width % Gemm::unit;
  }

  void operator()(Quarter<0>) {
    const int64_t index = unique_index_[row];
    x_ = inputs_ + index * gate_width;
    loop_.prefetch_projections(tile_ + 1, index);
    added_ = Activations::sigmoid(gate(0)) * Activations::tanh(gate(1));
  }

  void operator()(Quarter<1>) {
    float* const c = cells_ + row * Vec::width;
    __builtin_prefetch(c + loop_.d_.slots * Vec::width, 1, 2);
    const F forget = Activations::sigmoid(gate(2) + Vec::set1(1.0f));
    c_ = Loop::clip(forget * Vec::load(c) + added_, loop_.cell_limit_);
    Vec::store(c, c_);
  }

  void operator()(Quarter<2>) { out_ = Activations::sigmoid(gate(3)); }

  void operator()(Quarter<3>) {
    if (row > 0) take_m(row - 1);
    last_c_ = c_;
    last_out_ = out_;
    if (++row == rows) take_m(row - 1);
  }

 private:
  F gate(int64_t number) const { return this->sum(number) + Inputs::get(x_ + number * Vec::width); }

  void take_m(int64_t of_row) {
    const F m = last_out_ * Activations::tanh(last_c_);
    if (loop_.weights_.panels) {
      if constexpr (Gemm::takes_units) Vec::store(m_values_ + of_row * Gemm::unit + m_column_, m);
      else Gemm::put_vector(Gemm::left_at(m_operand_.data, m_operand_.k, of_row, m_column_), m, count_);
      return;
    }
    float values[Vec::width];
    Vec::store(values, m);
    loop_.emit(t_, of_row, tile_ * Vec::width, count_, values);
  }

  Loop& loop_;
  const int64_t t_;
  const int32_t* const unique_index_;
  int64_t tile_ = 0, count_ = 0, m_column_ = 0;
  Left<Gemm> m_operand_ = {};
  const typename Inputs::Value *inputs_ = nullptr, *x_ = nullptr;  // x W + B of the tile, of the row
  float *cells_ = nullptr, *m_values_ = nullptr;
  F added_ = {}, c_ = {}, out_ = {}, last_c_ = {}, last_out_ = {};
};

}  // namespace elmo_fast::cpu
