// One call of the plain product on random data, for the native test programs. Every buffer has its exact size.
#pragma once

#include <cmath>
#include <random>
#include <vector>

#include "../../csrc/projected_lstm.h"
#include "bits.h"

namespace {

using namespace elmo_fast;

std::vector<LinearShape> linear_shapes(Precision precision) {
  return {{7, 3, Epilogue::none, precision}, {300, 37, Epilogue::relu, precision}, {40, 40, Epilogue::highway, precision}};
}

struct LinearData {
  LinearShape shape;
  int64_t rows;
  std::vector<char> packed;
  Floats x;

  LinearData(const LinearShape& shape_, int64_t rows_, std::mt19937& rng)
      : shape(shape_), rows(rows_), x(random_floats(size_t(rows_ * shape_.input), rng)) {
    const size_t k = size_t(shape.input), m = size_t(shape.output);
    const Floats w = random_floats(k * m, rng), b = random_floats(m, rng);
    const bool highway = shape.epilogue == Epilogue::highway;
    packed.resize(linear_packed_size(shape));
    linear_pack(shape, w.data(), b.data(), highway ? w.data() : nullptr, highway ? b.data() : nullptr, packed.data(),
                packed.size());
  }

  Floats run(int threads) const {
    Floats y(size_t(rows * shape.output), NAN);
    linear_forward({shape, packed.data(), packed.size(), x.data(), rows, shape.input, y.data(), shape.output, threads});
    for (float value : y) require(!std::isnan(value), "linear: every output is written");
    return y;
  }
};

}  // namespace
