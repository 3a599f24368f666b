// The ops of the engine as loops in double, from the equations of csrc/*.h.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "char_cnn.h"
#include "linear.h"
#include "projected_lstm.h"

namespace reference {

using Doubles = std::vector<double>;

inline double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
// As torch.clamp: a NaN stays.
inline double clip(double x, double limit) { return x > limit ? limit : x < -limit ? -limit : x; }

// start [N] + x [K] weight [K, N]
inline Doubles product(const double* x, int64_t K, const Doubles& weight, const Doubles& start) {
  Doubles sum = start;
  for (int64_t k = 0; k < K; ++k)
    for (size_t n = 0; n < sum.size(); ++n) sum[n] += x[k] * weight[static_cast<size_t>(k) * sum.size() + n];
  return sum;
}

// One row of csrc/linear.h; `transform` is empty without a highway.
inline Doubles linear(const Doubles& x, const Doubles& weight, const Doubles& bias, const Doubles& transform,
                      const Doubles& transform_bias) {
  const auto K = static_cast<int64_t>(x.size());
  Doubles y = product(x.data(), K, weight, bias);
  if (transform.empty()) return y;
  const Doubles t = product(x.data(), K, transform, transform_bias);
  for (size_t k = 0; k < y.size(); ++k) {
    const double gate = sigmoid(y[k]);
    y[k] = gate * std::max(0.0, t[k]) + (1 - gate) * x[k];
  }
  return y;
}

// One direction of csrc/projected_lstm.h and its gradients, a packed row at a time. What a forward saves for the
// gradients is a Row.
struct Lstm {
  int64_t in, D, P;
  double cell_clip, proj_clip;
  Doubles W, B, WP;  // [in + P, 4D], [4D], [D, P] or empty
  Doubles grad_W, grad_B, grad_WP;

  struct Row {
    Doubles xh, c_before, i, j, f, o, c_sum, c, m, h_sum;
  };

  void clear_gradients() {
    grad_W.assign(W.size(), 0);
    grad_B.assign(B.size(), 0);
    grad_WP.assign(WP.size(), 0);
  }

  // h [P] and c [D] become the next ones.
  Row forward(const double* x, Doubles& h, Doubles& c) const {
    const auto cells = static_cast<size_t>(D);
    Row row;
    row.xh.assign(x, x + in);
    row.xh.insert(row.xh.end(), h.begin(), h.end());
    row.c_before = c;
    const Doubles z = product(row.xh.data(), in + P, W, B);
    for (auto* values : {&row.i, &row.j, &row.f, &row.o, &row.c_sum, &row.m}) values->resize(cells);
    for (size_t d = 0; d < cells; ++d) {
      row.i[d] = sigmoid(z[d]);
      row.j[d] = std::tanh(z[cells + d]);
      row.f[d] = sigmoid(z[2 * cells + d] + 1);
      row.o[d] = sigmoid(z[3 * cells + d]);
      row.c_sum[d] = row.f[d] * c[d] + row.i[d] * row.j[d];
      c[d] = clip(row.c_sum[d], cell_clip);
      row.m[d] = row.o[d] * std::tanh(c[d]);
    }
    row.c = c;
    if (WP.empty()) {
      h = row.m;
    } else {
      row.h_sum = product(row.m.data(), D, WP, Doubles(static_cast<size_t>(P), 0.0));
      for (size_t p = 0; p < h.size(); ++p) h[p] = clip(row.h_sum[p], proj_clip);
    }
    return row;
  }

  // Gradients of h and c after the row become those before it; returns that of x, adds those of the weights.
  Doubles backward(const Row& row, Doubles& grad_h, Doubles& grad_c) {
    const auto cells = static_cast<size_t>(D);
    Doubles grad_m = WP.empty() ? grad_h : Doubles(cells, 0.0);
    for (size_t p = 0; p < row.h_sum.size(); ++p) {
      const double g = std::fabs(row.h_sum[p]) <= proj_clip ? grad_h[p] : 0;
      for (size_t d = 0; d < cells; ++d) {
        grad_m[d] += g * WP[d * static_cast<size_t>(P) + p];
        grad_WP[d * static_cast<size_t>(P) + p] += g * row.m[d];
      }
    }
    Doubles grad_z(4 * cells);
    for (size_t d = 0; d < cells; ++d) {
      const double t = std::tanh(row.c[d]);
      const double all = grad_c[d] + grad_m[d] * row.o[d] * (1 - t * t);
      const double g = std::fabs(row.c_sum[d]) <= cell_clip ? all : 0;
      grad_z[d] = g * row.j[d] * row.i[d] * (1 - row.i[d]);
      grad_z[cells + d] = g * row.i[d] * (1 - row.j[d] * row.j[d]);
      grad_z[2 * cells + d] = g * row.c_before[d] * row.f[d] * (1 - row.f[d]);
      grad_z[3 * cells + d] = grad_m[d] * t * row.o[d] * (1 - row.o[d]);
      grad_c[d] = g * row.f[d];
    }
    Doubles grad_xh(row.xh.size(), 0.0);
    for (size_t k = 0; k < grad_xh.size(); ++k)
      for (size_t n = 0; n < grad_z.size(); ++n) {
        grad_xh[k] += grad_z[n] * W[k * grad_z.size() + n];
        grad_W[k * grad_z.size() + n] += grad_z[n] * row.xh[k];
      }
    for (size_t n = 0; n < grad_z.size(); ++n) grad_B[n] += grad_z[n];
    grad_h.assign(grad_xh.begin() + in, grad_xh.end());
    grad_xh.resize(static_cast<size_t>(in));
    return grad_xh;
  }
};

// Values and gradients of csrc/char_cnn.h.
struct CharCnn {
  Doubles values, grad_table;
  std::vector<Doubles> grad_weights;  // by bank

  CharCnn(const elmo_fast::CharCnnCall& call, const std::vector<float>& grad_values)
      : values(static_cast<size_t>(call.tokens * call.filters)),
        grad_table(static_cast<size_t>(call.table_rows * call.dim), 0.0) {
    for (int64_t b = 0; b < call.bank_count; ++b) {
      const elmo_fast::CharBank& bank = call.banks[b];
      grad_weights.emplace_back(static_cast<size_t>(bank.width * call.dim * bank.filters), 0.0);
      for (int64_t t = 0; t < call.tokens; ++t)
        for (int64_t f = 0; f < bank.filters; ++f) {
          const auto column = static_cast<size_t>(t * call.filters + bank.first + f);
          run(call, bank, t, f, grad_values[column], values[column], grad_weights.back());
        }
    }
  }

 private:
  void run(const elmo_fast::CharCnnCall& call, const elmo_fast::CharBank& bank, int64_t token, int64_t filter,
           double grad, double& largest, Doubles& grad_weight) {
    const int64_t terms = bank.width * call.dim;
    const auto table_at = [&](int64_t window, int64_t k) {
      return static_cast<size_t>(call.ids[token * call.characters + window + k / call.dim] * call.dim + k % call.dim);
    };
    const auto weight_at = [&](int64_t k) { return static_cast<size_t>(k * bank.filters + filter); };
    Doubles sums(static_cast<size_t>(call.characters - bank.width + 1), 0.0);
    for (size_t w = 0; w < sums.size(); ++w)
      for (int64_t k = 0; k < terms; ++k)
        sums[w] += double{call.table[table_at(static_cast<int64_t>(w), k)]} * bank.weight[weight_at(k)];
    largest = *std::max_element(sums.begin(), sums.end());
    const auto shared = static_cast<double>(std::count(sums.begin(), sums.end(), largest));
    for (size_t w = 0; w < sums.size(); ++w)
      if (sums[w] == largest)
        for (int64_t k = 0; k < terms; ++k) {
          const size_t at = table_at(static_cast<int64_t>(w), k);
          grad_weight[weight_at(k)] += grad / shared * call.table[at];
          grad_table[at] += grad / shared * bank.weight[weight_at(k)];
        }
  }
};

}  // namespace reference
