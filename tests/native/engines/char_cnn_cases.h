// Cases of csrc/char_cnn.h.
#pragma once

#include "support.h"

inline void check_char_cnn(Engine& engine, int64_t dim, int64_t tokens, int64_t characters,
                           const std::vector<std::pair<int64_t, int64_t>>& widths) {
  using namespace elmo_fast;
  Random random(static_cast<unsigned>(dim * 100 + tokens));
  const int32_t padding = 22;
  std::vector<int32_t> ids(static_cast<size_t>(tokens * characters), padding);
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t k = 0; k < t * 2 % (characters + 1); ++k)
      ids[static_cast<size_t>(t * characters + k)] = static_cast<int32_t>(random.below(padding));
  const Floats table = random.floats((padding + 1) * dim);
  std::vector<Floats> weights, grad_weights;
  std::vector<CharBank> banks;
  int64_t filters = 0;
  for (const auto& [width, count] : widths) {
    weights.push_back(random.floats(width * dim * count, 0.5));
    grad_weights.emplace_back(weights.back().size(), NAN);
  }
  for (size_t b = 0; b < widths.size(); filters += widths[b++].second)
    banks.push_back({widths[b].first, widths[b].second, filters, weights[b].data(), grad_weights[b].data()});
  CharCnnCall call = {ids.data(), tokens,       characters,
                      padding,    table.data(), padding + 1,
                      dim,        banks.data(), static_cast<int64_t>(banks.size()),
                      filters,    nullptr,      Activation::relu,
                      1};
  Floats values(static_cast<size_t>(tokens * filters), NAN), plain = values, threaded = values;
  std::vector<uint32_t> picks(values.size());
  const Floats grad_values = random.floats(tokens * filters);
  char_cnn_forward(call, values.data(), picks.data());
  char_cnn_forward(call, plain.data(), nullptr);
  Floats grad_table(table.size(), NAN);
  char_cnn_backward(call, grad_values.data(), picks.data(), grad_table.data());
  const std::string sizes = text("%dx%d, %d tokens", int(dim), int(filters), int(tokens));
  const double error = engine.error_of(sizes, {values, plain});
  grad_weights.push_back(grad_table);
  const double gradient_error = engine.error_of("gradients " + sizes, grad_weights);
  call.threads = 3;
  char_cnn_forward(call, threaded.data(), picks.data());
  engine.report("char cnn " + sizes,
                error <= engine.limit() && same_bits(values, threaded), error, engine.limit());
  const Floats biases = random.floats(filters);
  call.biases = biases.data();
  char_cnn_forward(call, values.data(), nullptr);
  call.activation = Activation::tanh;
  char_cnn_forward(call, threaded.data(), nullptr);
  bool holds = true;
  for (size_t k = 0; k < plain.size(); ++k) {
    const float bias = biases[k % biases.size()], sum = std::max(plain[k] + bias, 0.0f);
    holds = holds && (plain[k] > 0 ? values[k] == sum : values[k] <= sum);
    holds = holds && (values[k] > 0 ? std::abs(threaded[k] - std::tanh(values[k])) < 1e-6f : threaded[k] <= 0);
  }
  engine.report("char cnn with biases, ReLU and tanh " + sizes, holds, 0, 0);
  engine.report("char cnn gradients " + sizes, gradient_error <= engine.gradient_limit(), gradient_error,
                engine.gradient_limit());
}

inline void check_char_cnns(Engine& engine) {
  for (const int64_t dim : {1, 5, 16})
    for (const int64_t tokens : {1, 9, 30}) {
      check_char_cnn(engine, dim, tokens, 11, {{1, 32}, {3, 5}, {7, 40}});
      check_char_cnn(engine, dim, tokens, 7, {{7, 3}});
    }
}
