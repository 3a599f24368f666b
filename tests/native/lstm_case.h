// One call of the CPU LSTM on random data, for the native test programs. Every buffer has its exact size, so that a
// stray access is seen.
#pragma once

#include <cmath>
#include <random>
#include <vector>

#include "../../csrc/projected_lstm.h"
#include "bits.h"

namespace {

using namespace elmo_fast;

struct Case {
  int64_t input, dim, projection, lanes, steps;
};

struct Data {
  LstmShape shape;
  int64_t lanes;
  std::vector<char> packed;
  Floats inputs, products, h, c, reset_h, reset_c;
  std::vector<int32_t> live, rows, out_rows;
  std::vector<uint8_t> reset;

  Data(const Case& k, Precision precision, std::mt19937& rng)
      : shape{k.input, k.dim, k.projection}, lanes(k.lanes), inputs(random_floats(size_t(9 * k.input), rng)),
        products(random_floats(size_t(9 * 8 * k.dim), rng)),
        h(random_floats(size_t(k.lanes * 2 * k.projection), rng)), c(random_floats(size_t(k.lanes * 2 * k.dim), rng)),
        reset_h(random_floats(size_t(2 * k.projection), rng)), reset_c(random_floats(size_t(2 * k.dim), rng)) {
    pack(precision, rng);
    for (int64_t t = 0; t < k.steps; ++t)
      live.push_back(static_cast<int32_t>(t == 0 ? k.lanes : k.lanes - k.lanes * t / k.steps));
    size_t total = 0;
    for (int32_t n : live) total += size_t(n);
    for (size_t s = 0; s < 2 * total; ++s) {
      rows.push_back(static_cast<int32_t>(rng() % 9));
      out_rows.push_back(static_cast<int32_t>(s % total));
    }
    for (size_t s = 0; s < total; ++s) reset.push_back(rng() % 4 == 0);
  }

  void pack(Precision precision, std::mt19937& rng) {
    const size_t d = size_t(shape.dim), p = size_t(shape.projection);
    const Floats w = random_floats((size_t(shape.input) + p) * 4 * d, rng), b = random_floats(4 * d, rng);
    const Floats projection = random_floats(d * p, rng);
    const float* ws[2] = {w.data(), w.data()};
    const float* bs[2] = {b.data(), b.data()};
    const float* ps[2] = {nullptr, nullptr};
    if (d != p) ps[0] = ps[1] = projection.data();
    packed.resize(lstm_packed_size(shape, precision));
    lstm_pack(shape, precision, ws, bs, ps, packed.data(), packed.size());
  }

  // output, h, c one after the other.
  Floats run(Precision precision, int threads, int64_t chunk, bool multiplied = false) const {
    Floats output(rows.size() / 2 * 2 * size_t(shape.projection), NAN), h_end = h, c_end = c;
    LstmCall call = {};
    call.shape = shape;
    call.precision = precision;
    call.packed = packed.data();
    call.packed_size = packed.size();
    call.inputs = multiplied ? products.data() : inputs.data();
    call.multiplied = multiplied;
    call.input_rows = 9;
    call.steps = int64_t(live.size());
    call.live = live.data();
    call.step_rows = int64_t(rows.size() / 2);
    call.rows = rows.data();
    call.out_rows = out_rows.data();
    call.reset = reset.data();
    call.reset_h = reset_h.data();
    call.reset_c = reset_c.data();
    call.output = output.data();
    call.output_rows = call.step_rows;
    call.lanes = lanes;
    call.h = h_end.data();
    call.c = c_end.data();
    call.cell_clip = 0.3f;
    call.proj_clip = 0.05f;
    call.threads = threads;
    call.chunk_rows = chunk;
    lstm_forward(call);
    output.insert(output.end(), h_end.begin(), h_end.end());
    output.insert(output.end(), c_end.begin(), c_end.end());
    return output;
  }
};

}  // namespace
