// Calls of the CPU engine on random data, and their comparison to the bit. Every buffer has its exact size, so that a
// stray access is seen; outputs are poisoned.
#pragma once

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string_view>
#include <vector>

#include "../../csrc/char_cnn.h"
#include "../../csrc/projected_lstm.h"

namespace {

using namespace elmo_fast;

using Floats = std::vector<float>;

inline Floats random_floats(size_t count, std::mt19937& rng, float deviation = 0.1f) {
  std::normal_distribution<float> normal(0.0f, deviation);
  Floats values(count);
  for (float& v : values) v = normal(rng);
  return values;
}

inline void require(bool holds, const char* what) {
  if (holds) return;
  std::printf("failed: %s\n", what);
  std::exit(1);
}

inline bool same(const Floats& a, const Floats& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

inline size_t digest = 0;  // of everything that was written

inline const Floats& written(const Floats& values) {
  for (float value : values) require(std::isfinite(value), "every output is written");
  const std::string_view bytes(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  digest = digest * 31 + std::hash<std::string_view>{}(bytes);
  return values;
}

inline Floats joined(std::initializer_list<const Floats*> parts) {
  Floats all;
  for (const Floats* part : parts) all.insert(all.end(), part->begin(), part->end());
  return all;
}

struct LstmCase {
  LstmShape shape;
  int64_t slots, steps;
};

inline const LstmCase lstm_cases[] = {{{1, 1, 1}, 1, 1},      {{5, 37, 11}, 17, 4},  {{16, 24, 24}, 3, 5},
                                      {{300, 70, 40}, 33, 3}, {{33, 520, 33}, 2, 2}, {{8, 64, 16}, 64, 6}};

enum class Inputs { gathered, split, precomputed };

// One layer whose directions share weights; both clips fire.
struct LstmData {
  static constexpr int64_t gathered_rows = 9;

  LstmShape shape;
  int64_t slots;
  Precision precision;
  std::vector<int32_t> batch_sizes, packed_rows, rows;
  std::vector<uint8_t> sequence_start;
  Floats w, b, p, inputs, split, precomputed, h, c, initial_h, initial_c, grad_output, grad_h, grad_c;
  std::vector<char> packed, packed_backward;

  LstmData(const LstmCase& k, Precision precision_, std::mt19937& rng, float scale = 1.0f, float deviation = 0.1f)
      : shape(k.shape), slots(k.slots), precision(precision_) {
    for (int64_t t = 0; t < k.steps; ++t)
      batch_sizes.push_back(static_cast<int32_t>(t == 0 ? slots : slots - slots * t / k.steps));
    size_t total = 0;
    for (int32_t n : batch_sizes) total += size_t(n);
    for (size_t s = 0; s < 2 * total; ++s) {
      packed_rows.push_back(static_cast<int32_t>(s % total));
      rows.push_back(static_cast<int32_t>(rng() % gathered_rows));
    }
    for (size_t s = 0; s < total; ++s) sequence_start.push_back(rng() % 4 == 0);
    const auto draw = [&](size_t count) { return random_floats(count, rng, deviation); };
    const size_t d = size_t(shape.dim), pr = size_t(shape.projection), in = size_t(shape.input), n = size_t(slots);
    w = draw((in + pr) * 4 * d), b = draw(4 * d), p = draw(d != pr ? d * pr : 0);
    inputs = draw(gathered_rows * in), split = draw(total * 2 * in), precomputed = draw(gathered_rows * 8 * d);
    for (float& value : inputs) value *= scale;
    h = draw(n * 2 * pr), c = draw(n * 2 * d), initial_h = draw(2 * pr), initial_c = draw(2 * d);
    grad_output = draw(total * 2 * pr), grad_h = draw(h.size()), grad_c = draw(c.size());
    const float *const ws[] = {w.data(), w.data()}, *const bs[] = {b.data(), b.data()};
    const float* const ps[] = {p.empty() ? nullptr : p.data(), p.empty() ? nullptr : p.data()};
    packed.resize(lstm_packed_size(shape, precision));
    lstm_pack(shape, precision, ws, bs, ps, packed.data(), packed.size());
    packed_backward.resize(lstm_backward_packed_size(shape));
    lstm_backward_pack(shape, ws, ps, packed_backward.data(), packed_backward.size());
  }

  LstmCall call(const std::vector<char>& weights, Floats& h_now, Floats& c_now, int threads, Inputs from) const {
    const bool halves = from == Inputs::split;
    LstmCall call = {};
    call.shape = shape;
    call.precision = precision;
    call.packed = weights.data();
    call.packed_size = weights.size();
    call.inputs = (from == Inputs::gathered ? inputs : halves ? split : precomputed).data();
    call.input_rows = halves ? int64_t(sequence_start.size()) : gathered_rows;
    call.split_input = halves;
    call.precomputed = from == Inputs::precomputed;
    call.steps = int64_t(batch_sizes.size());
    call.batch_sizes = batch_sizes.data();
    call.packed_rows = call.output_rows = int64_t(sequence_start.size());
    call.rows = (halves ? packed_rows : rows).data();
    call.out_rows = packed_rows.data();
    call.sequence_start = sequence_start.data();
    call.initial_h = initial_h.data();
    call.initial_c = initial_c.data();
    call.slots = slots;
    call.h = h_now.data();
    call.c = c_now.data();
    call.cell_clip = 0.3f;
    call.proj_clip = 0.05f;
    call.threads = threads;
    return call;
  }

  // Output, h, c; with `saved` a training forward.
  Floats forward(int threads, int64_t chunk = 0, Inputs from = Inputs::gathered,
                 std::vector<char>* saved = nullptr) const {
    Floats output(grad_output.size(), NAN), h_end = h, c_end = c;
    LstmCall forward = call(packed, h_end, c_end, threads, from);
    forward.output = output.data();
    forward.chunk_rows = chunk;
    if (saved) {
      saved->assign(lstm_saved_size(shape, forward.packed_rows), '\xff');
      lstm_forward_saving(forward, saved->data(), saved->size());
    } else {
      lstm_forward(forward);
    }
    return joined({&output, &h_end, &c_end});
  }

  // All gradients one after the other.
  Floats backward(int threads, const std::vector<char>& saved, Inputs from) const {
    Floats h_before = h, c_before = c, dh = grad_h, dc = grad_c;
    Floats dx(from == Inputs::split ? split.size() : 2 * inputs.size(), 0.0f), dw(2 * w.size(), NAN),
        db(2 * b.size(), NAN), dp(2 * p.size(), NAN), dinitial_h(initial_h.size(), NAN),
        dinitial_c(initial_c.size(), NAN);
    const LstmCall forward = call(packed_backward, h_before, c_before, threads, from);
    std::vector<char> scratch(lstm_backward_scratch_size(forward));
    float* const second = dx.data() + (from == Inputs::split ? size_t(shape.input) : inputs.size());
    float* const first_dp = p.empty() ? nullptr : dp.data();
    lstm_backward({forward,
                   saved.data(),
                   saved.size(),
                   grad_output.data(),
                   dh.data(),
                   dc.data(),
                   {dx.data(), second},
                   {dw.data(), dw.data() + w.size()},
                   {db.data(), db.data() + b.size()},
                   {first_dp, first_dp + p.size()},
                   dinitial_h.data(),
                   dinitial_c.data(),
                   scratch.data(),
                   scratch.size()});
    require(same(h_before, h) && same(c_before, c), "the initial state is left alone");
    return joined({&dx, &dw, &db, &dp, &dh, &dc, &dinitial_h, &dinitial_c});
  }
};

inline std::vector<LinearShape> linear_shapes(Precision precision) {
  return {
      {7, 3, Epilogue::none, precision}, {300, 37, Epilogue::none, precision}, {40, 40, Epilogue::highway, precision}};
}

struct LinearData {
  LinearShape shape;
  int64_t rows;
  std::vector<char> packed;
  Floats x;

  LinearData(const LinearShape& shape_, int64_t rows_, std::mt19937& rng, float scale = 1.0f)
      : shape(shape_), rows(rows_), x(random_floats(size_t(rows_ * shape_.input), rng, 0.1f * scale)) {
    const Floats w = random_floats(size_t(shape.input * shape.output), rng);
    const Floats b = random_floats(size_t(shape.output), rng);
    const bool highway = shape.epilogue == Epilogue::highway;
    packed.resize(linear_packed_size(shape));
    linear_pack(shape, w.data(), b.data(), highway ? w.data() : nullptr, highway ? b.data() : nullptr, packed.data(),
                packed.size());
  }

  Floats run(int threads) const {
    Floats y(size_t(rows * shape.output), NAN);
    linear_forward({shape, packed.data(), packed.size(), x.data(), rows, shape.input, y.data(), shape.output, threads});
    return y;
  }
};

}  // namespace
