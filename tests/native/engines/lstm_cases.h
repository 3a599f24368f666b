// Cases of csrc/projected_lstm.h: forward, what it saves, gradients.
#pragma once

#include <limits>
#include <stdexcept>

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
      for (int64_t s = 0; s < S; ++s) {
        rows.push_back(static_cast<int32_t>(schedule.split ? s : random.below(input_rows)));
        out_rows.push_back(static_cast<int32_t>(d ? S - 1 - s : (s + S / 2) % S));
      }
    }
    for (int64_t s = 0; s < S; ++s) start.push_back(schedule.starts && s % 3 == 1);
  }

  void check(Engine& engine) {
    expect();
    const elmo_fast::LstmShape shape = {in, D, P};
    Buffer packed(elmo_fast::lstm_packed_size(shape, engine.precision));
    pack(shape, engine.precision, packed);
    const Result first = forward(engine.precision, packed, 1);
    const bool same = first == forward(engine.precision, packed, 2) && first == forward(engine.precision, packed, 3);
    const double error = std::max({relative_error(first.output, output_expected), relative_error(first.h, h_expected),
                                   relative_error(first.c, c_expected)});
    for (const Floats* each : {&first.output, &first.h, &first.c}) engine.record(*each);
    engine.report(name("lstm"), error <= engine.limit() && same, error, engine.limit());
    if (in > 10 && S > 10) engine.expect(name("clips as expected"), clipped() == schedule.clips);
    engine.expect(name("lstm at addresses"), first == addressed(engine.precision, packed));
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

  void pack(const elmo_fast::LstmShape& shape, elmo_fast::Precision precision, Buffer& packed) const {
    elmo_fast::lstm_pack(shape, precision, weights, biases, projections(), packed.data(), packed.size());
  }

  const float* const* projections() const { return D == P ? none : with_projection; }

  // `result` has the outputs' addresses.
  elmo_fast::LstmCall call(Result& result, const Buffer& packed, const char* data) const {
    elmo_fast::LstmCall to = {};
    to.shape = {in, D, P};
    to.packed = data, to.packed_size = packed.size();
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

  // Whether both clips hold some values and leave others.
  bool clipped() const {
    int64_t cells = 0, outputs = 0, all = 0;
    for (int d = 0; d < 2; ++d)
      for (const reference::Lstm::Row& row : saved[d]) {
        ++all;
        cells += std::any_of(row.c_sum.begin(), row.c_sum.end(), [](double c) { return std::fabs(c) > 0.6; });
        outputs += row.h_sum.empty() || std::any_of(row.h_sum.begin(), row.h_sum.end(),
                                                    [](double h) { return std::fabs(h) > 0.3; });
      }
    return schedule.clips && cells > all / 4 && outputs > all / 4;
  }

  float clip(float limit) const { return schedule.clips ? limit : std::numeric_limits<float>::infinity(); }

  elmo_fast::LstmRows from() const { return {inputs.data(), input_rows, schedule.split ? nullptr : rows.data()}; }

  Result forward(elmo_fast::Precision precision, Buffer& packed, int threads) const {
    Result result = before();
    elmo_fast::LstmCall to = call(result, packed, packed.data());
    to.threads = threads;
    elmo_fast::lstm_forward(to, from(), precision);
    return result;
  }

  Result before() const { return {Floats(static_cast<size_t>(S * 2 * P), NAN), h, c, {}}; }

  // With addresses of the inputs in place of rows.
  Result addressed(elmo_fast::Precision precision, Buffer& packed) const {
    Result result = before();
    std::vector<const float*> inputs_at;
    for (int d = 0; d < 2; ++d)
      for (int64_t s = 0; s < S; ++s) inputs_at.push_back(input_of(s, d));
    elmo_fast::lstm_forward(call(result, packed, packed.data()), elmo_fast::LstmAddresses{inputs_at.data(), false},
                            precision);
    return result;
  }

  Doubles half(const Doubles& both, int64_t row, int64_t width, int d) const {
    const auto from = both.begin() + (row * 2 + d) * width;
    return Doubles(from, from + width);
  }
  static void put(const Doubles& values, Doubles& both, int64_t row, int d) {
    std::copy(values.begin(), values.end(),
              both.begin() + (row * 2 + d) * static_cast<int64_t>(values.size()));
  }

  // Slots and packed rows in the order of the steps, or from the last to the first.
  template <class Function>
  void each_row(bool reversed, Function function) const {
    std::vector<int64_t> slot_of;
    for (const int32_t size : schedule.sizes)
      for (int64_t slot = 0; slot < size; ++slot) slot_of.push_back(slot);
    for (int64_t k = 0; k < S; ++k) {
      const int64_t s = reversed ? S - 1 - k : k;
      function(s, slot_of[static_cast<size_t>(s)]);
    }
  }

  const float* input_of(int64_t s, int d) const {
    const int64_t row = rows[static_cast<size_t>(d * S + s)];
    return inputs.data() + (schedule.split ? (row * 2 + d) * in : row * in);
  }

  void expect() {
    h_expected = doubles(h), c_expected = doubles(c), output_expected.assign(static_cast<size_t>(S * 2 * P), 0);
    const Doubles h0 = doubles(initial_h), c0 = doubles(initial_c);
    for (int d = 0; d < 2; ++d) {
      weights[d] = W[d].data(), biases[d] = B[d].data(), with_projection[d] = WP[d].data();
      expected[d] = {in, D, P, clip(0.6f), clip(0.3f), doubles(W[d]), doubles(B[d]), doubles(WP[d]), {}, {}, {}};
      saved[d].clear();
      each_row(false, [&](int64_t s, int64_t slot) {
        const bool starts = start[static_cast<size_t>(s)];
        Doubles hs = starts ? half(h0, 0, P, d) : half(h_expected, slot, P, d);
        Doubles cs = starts ? half(c0, 0, D, d) : half(c_expected, slot, D, d);
        const float* x = input_of(s, d);
        saved[d].push_back(expected[d].forward(Doubles(x, x + in).data(), hs, cs));
        put(hs, h_expected, slot, d), put(cs, c_expected, slot, d);
        put(hs, output_expected, out_rows[static_cast<size_t>(d * S + s)], d);
      });
    }
  }

  void gradients(Engine& engine, Buffer& packed, const Result& plain) {
    const elmo_fast::LstmShape shape = {in, D, P};
    Buffer kept(elmo_fast::lstm_saved_size(shape, S)), backward(elmo_fast::lstm_backward_packed_size(shape));
    Result again = before();
    elmo_fast::lstm_forward_saving(call(again, packed, packed.data()), from(), kept.data(), kept.size());
    engine.expect(name("lstm saving"), again == plain);

    const Floats grad_output = random.floats(S * 2 * P), grad_h = random.floats(slots * 2 * P),
                 grad_c = random.floats(slots * 2 * D);
    elmo_fast::lstm_backward_pack(shape, weights, projections(), backward.data(), backward.size());
    const auto run = [&](int threads) {
      Result state = before();
      elmo_fast::LstmBackwardCall to = {};
      to.forward = call(state, backward, backward.data());
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
        to.grad_weights[d] = out[4 + 3 * d].data(), to.grad_biases[d] = out[5 + 3 * d].data();
        to.grad_projections[d] = D == P ? nullptr : out[6 + 3 * d].data();
        to.grad_inputs[d] = schedule.split ? out[10].data() + static_cast<int64_t>(d) * in : out[10 + d].data();
      }
      Buffer scratch(elmo_fast::lstm_backward_scratch_size(to.forward, to.from));
      to.scratch = scratch.data(), to.scratch_size = scratch.size();
      elmo_fast::lstm_backward(to);
      return out;
    };
    const std::vector<Floats> found = run(1), threaded = run(3);
    const std::vector<Doubles> truth = expected_gradients(grad_output, grad_h, grad_c);
    double error = 0;
    bool same = true;
    for (size_t k = 0; k < truth.size(); ++k) {
      same = same && same_bits(found[k], threaded[k]);
      const double one = relative_error(found[k], truth[k]);
      if (!(one <= error)) error = one;
    }
    engine.report(name("lstm gradients"), error <= engine.gradient_limit() && same, error, engine.gradient_limit());
  }

  // In the order of the results of `run`.
  std::vector<Doubles> expected_gradients(const Floats& grad_output, const Floats& grad_h, const Floats& grad_c) {
    std::vector<Doubles> truth = {doubles(grad_h), doubles(grad_c), Doubles(initial_h.size(), 0.0),
                                  Doubles(initial_c.size(), 0.0)};
    std::vector<Doubles> grad_inputs(2, Doubles(inputs.size(), 0.0));
    for (int d = 0; d < 2; ++d) {
      expected[d].clear_gradients();
      each_row(true, [&](int64_t s, int64_t slot) {
        Doubles gh = half(truth[0], slot, P, d), gc = half(truth[1], slot, D, d);
        for (int64_t p = 0; p < P; ++p) gh[static_cast<size_t>(p)] += grad_output[static_cast<size_t>((s * 2 + d) * P + p)];
        const Doubles gx = expected[d].backward(saved[d][static_cast<size_t>(s)], gh, gc);
        const auto at = static_cast<size_t>(input_of(s, d) - inputs.data());
        Doubles& to = grad_inputs[schedule.split ? 0 : static_cast<size_t>(d)];
        for (size_t k = 0; k < gx.size(); ++k) to[at + k] += gx[k];
        if (start[static_cast<size_t>(s)]) {
          for (size_t p = 0; p < gh.size(); ++p) truth[2][static_cast<size_t>(d * P) + p] += gh[p];
          for (size_t k = 0; k < gc.size(); ++k) truth[3][static_cast<size_t>(d * D) + k] += gc[k];
          gh.assign(gh.size(), 0), gc.assign(gc.size(), 0);
        }
        put(gh, truth[0], slot, d), put(gc, truth[1], slot, d);
      });
    }
    for (const reference::Lstm& each : expected)
      for (const Doubles* grad : {&each.grad_W, &each.grad_B, &each.grad_WP}) truth.push_back(*grad);
    truth.insert(truth.end(), grad_inputs.begin(), grad_inputs.end());
    return truth;
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
  reference::Lstm expected[2];
  std::vector<reference::Lstm::Row> saved[2];
  Doubles output_expected, h_expected, c_expected;
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

// Packed weights of another precision or shape, and sizes that do not fit, end in std::invalid_argument.
inline void check_lstm_refusals(Engine& engine) {
  using namespace elmo_fast;
  const LstmShape shape = {3, 4, 2};
  Buffer packed(lstm_packed_size(shape, engine.precision));
  std::memset(packed.data(), 0, packed.size());
  Floats values(64, 0.5f), h(4), c(8), output(4);
  float* const outputs[] = {output.data(), output.data() + 2};
  const int32_t one[] = {1}, zeros[] = {0, 0};
  LstmCall call = {};
  call.shape = shape, call.packed = packed.data(), call.packed_size = packed.size();
  call.steps = 1, call.batch_sizes = one, call.packed_rows = 1, call.outputs = outputs, call.slots = 1;
  call.h = h.data(), call.c = c.data(), call.cell_clip = call.proj_clip = 1, call.threads = 1;
  const auto refuses = [&](const char* name, const LstmCall& wrong, int64_t input_rows = 1) {
    try {
      lstm_forward(wrong, LstmRows{values.data(), input_rows, zeros}, engine.precision);
      engine.expect(name, false);
    } catch (const std::invalid_argument&) {
      engine.expect(name, true);
    }
  };
  refuses("refuses memory that nothing packed", call);
  const float* const all[] = {values.data(), values.data()};
  Floats weight(static_cast<size_t>(5 * 16), 0.1f);
  const float* const weights[] = {weight.data(), weight.data()};
  lstm_pack(shape, engine.precision, weights, all, all, packed.data(), packed.size());
  LstmCall wrong = call;
  wrong.shape.input = 4;
  refuses("refuses another shape", wrong);
  wrong = call, wrong.packed_size = 64;
  refuses("refuses a part of packed weights", wrong);
  wrong = call, wrong.slots = 0;
  refuses("refuses more rows than slots", wrong);
  refuses("refuses rows beyond the inputs", call, 0);
}
