// Cases of csrc/projected_lstm.h: forward, what it saves, gradients.
#pragma once

#include <algorithm>
#include <limits>

#include "support.h"

struct Schedule {
  const char* name;
  std::vector<int32_t> sizes;
  bool starts, split, clips;
};

// With more unique inputs than one input GEMM takes: of several steps, and of every step.
inline const std::vector<Schedule>& large_schedules() {
  static const std::vector<Schedule> all = {{"chunks", std::vector<int32_t>(7, 224), true, false, true},
                                            {"large steps", {1100, 1100, 50}, true, false, true}};
  return all;
}

inline const std::vector<Schedule>& schedules() {
  static const std::vector<Schedule> all = {{"ragged", {7, 7, 6, 3, 3, 1}, false, false, true},
                                            {"starts", {5, 5, 5, 4, 4, 2, 2, 1}, true, false, true},
                                            {"halves", {16, 15, 9, 2}, true, true, true},
                                            {"one row", {1}, false, false, false},
                                            {"many slots", {37, 33, 20, 17, 14}, true, false, true},
                                            {"no clips", {3, 3, 2}, false, true, false},
                                            {"no steps", {}, false, false, true}};
  return all;
}

class LstmCase {
 public:
  LstmCase(int64_t in_, int64_t D_, int64_t P_, const Schedule& schedule_)
      : in(in_), D(D_), P(P_), schedule(schedule_), random(static_cast<unsigned>(in_ * 7 + D_ * 11 + P_)) {
    for (const int32_t size : schedule.sizes) S += size;
    slots = 1 + (schedule.sizes.empty() ? 1 : schedule.sizes[0]);  // one never runs
    input_rows = schedule.split ? S : S / 2 + 3;
    inputs = random.floats(input_rows * in * (schedule.split ? 2 : 1));
    h = random.floats(slots * 2 * P, 0.5), c = random.floats(slots * 2 * D);
    initial_h = random.floats(2 * P, 0.5), initial_c = random.floats(2 * D);
    for (int d = 0; d < 2; ++d) {
      W[d] = random.floats((in + P) * 4 * D, 1.5 / std::sqrt(double(in + P)));
      B[d] = random.floats(4 * D, 0.5);
      if (D != P) WP[d] = random.floats(D * P, 1.5 / std::sqrt(double(D)));
      weights[d] = W[d].data(), biases[d] = B[d].data(), with_projection[d] = WP[d].data();
      for (int64_t s = 0; s < S; ++s) {
        rows.push_back(static_cast<int32_t>(schedule.split ? s : random.below(input_rows)));
        out_rows.push_back(static_cast<int32_t>(d ? S - 1 - s : (s + S / 2) % S));
      }
    }
    for (int64_t s = 0; s < S; ++s) start.push_back(schedule.starts && s % 3 == 1);
  }

  void check(Engine& engine) {
    const elmo_fast::LstmShape shape = {in, D, P};
    const elmo_fast::PackedLstm packed = elmo_fast::lstm_pack(shape, engine.precision, weights, biases, projections());
    const Result first = forward(packed, 1);
    const bool same = first == forward(packed, 2) && first == forward(packed, 3);
    const double error = engine.error_of(name("lstm"), {first.output, first.h, first.c});
    engine.report(name("lstm"), error <= engine.limit() && same, error, engine.limit());
    if (in > 10 && S > 10) engine.expect(name("clips as expected"), clipped(first) == schedule.clips);
    engine.expect(name("lstm at addresses"), first == addressed(packed));
    if (!engine.trains()) return;
    gradients(engine, packed, first);
  }

 private:
  struct Result {
    Floats output, h, c;
    std::vector<float*> addresses;
    bool operator==(const Result& other) const {
      return same_bits(output, other.output) && same_bits(h, other.h) && same_bits(c, other.c);
    }
  };

  std::string name(const char* op) const {
    return text("%s %d %d %d, %s", op, int(in), int(D), int(P), schedule.name);
  }

  const float* const* projections() const { return D == P ? none : with_projection; }

  // `result` has the outputs' addresses.
  elmo_fast::LstmCall call(Result& result) const {
    elmo_fast::LstmCall to = {};
    to.shape = {in, D, P};
    to.steps = static_cast<int64_t>(schedule.sizes.size()), to.batch_sizes = schedule.sizes.data();
    to.packed_rows = S;
    if (schedule.starts) to.sequence_start = start.data(), to.initial_h = initial_h.data(), to.initial_c = initial_c.data();
    for (int64_t d = 0; d < 2; ++d)
      for (int64_t s = 0; s < S; ++s)
        result.addresses.push_back(result.output.data() + (2 * out_rows[size_t(d * S + s)] + d) * P);
    to.outputs = result.addresses.data();
    to.slots = slots, to.h = result.h.data(), to.c = result.c.data();
    to.cell_clip = clip(0.6f), to.proj_clip = clip(0.3f);
    to.threads = 1;
    return to;
  }

  // Whether both clips hold some values.
  bool clipped(const Result& result) const {
    const auto holds = [](const Floats& values, float limit) {
      return std::any_of(values.begin(), values.end(), [&](float x) { return std::fabs(x) == limit; });
    };
    return holds(result.c, 0.6f) && (D == P || holds(result.output, 0.3f));
  }

  float clip(float limit) const { return schedule.clips ? limit : std::numeric_limits<float>::infinity(); }

  elmo_fast::LstmRows from() const { return {inputs.data(), input_rows, schedule.split ? nullptr : rows.data()}; }

  Result forward(const elmo_fast::PackedLstm& packed, int threads) const {
    Result result = before();
    elmo_fast::LstmCall to = call(result);
    to.threads = threads;
    elmo_fast::lstm_forward(packed, to, from());
    return result;
  }

  Result before() const { return {Floats(static_cast<size_t>(S * 2 * P), NAN), h, c, {}}; }

  // With addresses of the inputs in place of rows.
  Result addressed(const elmo_fast::PackedLstm& packed) const {
    Result result = before();
    std::vector<const float*> inputs_at;
    for (int d = 0; d < 2; ++d)
      for (int64_t s = 0; s < S; ++s) inputs_at.push_back(input_of(s, d));
    elmo_fast::lstm_forward(packed, call(result), elmo_fast::LstmAddresses{inputs_at.data(), false});
    return result;
  }

  const float* input_of(int64_t s, int d) const {
    const int64_t row = rows[static_cast<size_t>(d * S + s)];
    return inputs.data() + (schedule.split ? (row * 2 + d) * in : row * in);
  }

  void gradients(Engine& engine, const elmo_fast::PackedLstm& packed, const Result& plain) {
    const elmo_fast::LstmShape shape = {in, D, P};
    Buffer kept(elmo_fast::lstm_saved_size(shape, S));
    Result again = before();
    elmo_fast::lstm_forward(packed, call(again), from(), kept.data());
    engine.expect(name("lstm saving"), again == plain);

    const Floats grad_output = random.floats(S * 2 * P), grad_h = random.floats(slots * 2 * P),
                 grad_c = random.floats(slots * 2 * D);
    const auto run = [&](int threads) {
      Result state = before();
      elmo_fast::LstmBackwardCall to = {};
      to.forward = call(state);
      to.forward.threads = threads;
      to.from = from();
      std::vector<Floats> out = {grad_h, grad_c, Floats(initial_h.size(), NAN), Floats(initial_c.size(), NAN)};
      for (int d = 0; d < 2; ++d)
        for (size_t size : {W[d].size(), B[d].size(), WP[d].size()}) out.emplace_back(size, NAN);
      // Rows that no packed row reads are left alone.
      for (int d = 0; d < 2; ++d) out.emplace_back(inputs.size(), 0.0f);
      to.saved = kept.data(), to.saved_size = kept.size();
      to.grad_output = grad_output.data(), to.grad_h = out[0].data(), to.grad_c = out[1].data();
      to.grad_initial_h = out[2].data(), to.grad_initial_c = out[3].data();
      for (size_t d = 0; d < 2; ++d) {
        to.weights[d] = weights[d], to.projections[d] = projections()[d];
        to.grad_weights[d] = out[4 + 3 * d].data(), to.grad_biases[d] = out[5 + 3 * d].data();
        to.grad_projections[d] = D == P ? nullptr : out[6 + 3 * d].data();
        to.grad_inputs[d] = schedule.split ? out[10].data() + static_cast<int64_t>(d) * in : out[10 + d].data();
      }
      elmo_fast::lstm_backward(to);
      return out;
    };
    const std::vector<Floats> found = run(1), threaded = run(3);
    const double error = engine.error_of(name("gradients"), found);
    bool same = true;
    for (size_t k = 0; k < found.size(); ++k) same = same && same_bits(found[k], threaded[k]);
    engine.report(name("lstm gradients"), error <= engine.gradient_limit() && same, error, engine.gradient_limit());
  }

  const int64_t in, D, P;
  const Schedule& schedule;
  Random random;
  int64_t S = 0, slots, input_rows;
  Floats inputs, h, c, initial_h, initial_c, W[2], B[2], WP[2];
  std::vector<int32_t> rows, out_rows;
  std::vector<uint8_t> start;
  const float *weights[2], *biases[2], *with_projection[2];
  static constexpr const float* none[2] = {};
};

inline void check_lstms(Engine& engine) {
  const int64_t shapes[][3] = {{1, 1, 1},   {7, 5, 2},    {11, 11, 11}, {13, 37, 9},
                               {24, 16, 16}, {16, 64, 48}, {280, 40, 33}, {20, 300, 24}};
  for (const auto& [in, D, P] : shapes)
    for (const Schedule& schedule : schedules()) LstmCase(in, D, P, schedule).check(engine);
  for (const Schedule& schedule : large_schedules()) {
    LstmCase(7, 5, 2, schedule).check(engine);
    LstmCase(11, 11, 11, schedule).check(engine);
  }
}
