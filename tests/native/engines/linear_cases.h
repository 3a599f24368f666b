// Cases of csrc/linear.h.
#pragma once

#include "support.h"

inline void check_linear(Engine& engine, int64_t rows, int64_t K, int64_t M, elmo_fast::Epilogue epilogue) {
  using namespace elmo_fast;
  Random random(static_cast<unsigned>(rows * 1000 + K * 10 + M));
  const bool highway = epilogue == Epilogue::highway;
  const double scale = 1 / std::sqrt(static_cast<double>(K));
  const Floats x = random.floats(rows * K), weight = random.floats(K * M, scale), bias = random.floats(M);
  const Floats transform = random.floats(highway ? K * M : 0, scale), transform_bias = random.floats(highway ? M : 0);
  const LinearShape shape = {K, M, epilogue, engine.precision};
  const PackedLinear packed = linear_pack(shape, weight.data(), bias.data(), highway ? transform.data() : nullptr,
                                          highway ? transform_bias.data() : nullptr);
  const auto run = [&](int threads) {
    Floats y(static_cast<size_t>(rows * M), NAN);
    linear_forward(packed, {shape, nullptr, x.data(), rows, y.data(), threads});
    return y;
  };
  const Floats y = run(1);
  const std::string name = text("%s %dx%dx%d", highway ? "highway" : "linear", int(rows), int(K), int(M));
  const double error = engine.error_of(name, {y});
  engine.report(name, error <= engine.limit() && same_bits(y, run(3)), error, engine.limit());
}

inline void check_linears(Engine& engine) {
  using elmo_fast::Epilogue;
  const int64_t sizes[][2] = {{1, 1}, {5, 130}, {17, 37}, {64, 33}, {300, 96}, {530, 16}};
  for (const auto& [K, M] : sizes)
    for (const int64_t rows : {1, 3, 17, 40}) check_linear(engine, rows, K, M, Epilogue::none);
  for (const int64_t size : {1, 33, 64, 130, 290})
    for (const int64_t rows : {1, 7, 40}) check_linear(engine, rows, size, size, Epilogue::highway);
}
