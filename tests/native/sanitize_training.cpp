// The gradients of the CPU engine over many shapes and thread counts, compared by bits; see sanitize.cpp.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "../../csrc/char_cnn.h"
#include "../../csrc/projected_lstm_training.h"
#include "bits.h"

namespace {

using namespace elmo_fast;

constexpr float deviation = 0.3f;

struct Case {
  int64_t input, dim, projection, lanes, steps;
  bool split;
};

// One call, every buffer of its exact size.
struct Data {
  Case k;
  LstmShape shape;
  int64_t rows_read;
  Floats w, b, p, inputs, h, c, reset_h, reset_c, grad_output, grad_h, grad_c;
  std::vector<char> packed, packed_backward;
  std::vector<int32_t> live, rows, places;
  std::vector<uint8_t> reset;

  Data(const Case& k_, std::mt19937& rng) : k(k_), shape{k_.input, k_.dim, k_.projection} {
    for (int64_t t = 0; t < k.steps; ++t)
      live.push_back(static_cast<int32_t>(t == 0 ? k.lanes : k.lanes - k.lanes * t / k.steps));
    size_t total = 0;
    for (int32_t n : live) total += size_t(n);
    rows_read = k.split ? int64_t(total) : 9;
    for (size_t s = 0; s < 2 * total; ++s) {
      places.push_back(static_cast<int32_t>(s % total));
      rows.push_back(k.split ? places.back() : static_cast<int32_t>(rng() % 9));
    }
    for (size_t s = 0; s < total; ++s) reset.push_back(rng() % 4 == 0);
    const size_t d = size_t(k.dim), pr = size_t(k.projection), in = size_t(k.input), n = size_t(k.lanes);
    w = random_floats((in + pr) * 4 * d, rng, deviation);
    b = random_floats(4 * d, rng, deviation);
    p = random_floats(d * pr, rng, deviation);
    inputs = random_floats(size_t(rows_read) * in * (k.split ? 2 : 1), rng, deviation);
    h = random_floats(n * 2 * pr, rng, deviation);
    c = random_floats(n * 2 * d, rng, deviation);
    reset_h = random_floats(2 * pr, rng, deviation);
    reset_c = random_floats(2 * d, rng, deviation);
    grad_output = random_floats(total * 2 * pr, rng, deviation);
    grad_h = random_floats(h.size(), rng, deviation);
    grad_c = random_floats(c.size(), rng, deviation);
    pack();
  }

  void pack() {
    const float* ws[2] = {w.data(), w.data()};
    const float* bs[2] = {b.data(), b.data()};
    const float* ps[2] = {nullptr, nullptr};
    if (k.dim != k.projection) ps[0] = ps[1] = p.data();
    packed.resize(lstm_packed_size(shape, Precision::highest));
    lstm_pack(shape, Precision::highest, ws, bs, ps, packed.data(), packed.size());
    packed_backward.resize(lstm_backward_packed_size(shape));
    lstm_backward_pack(shape, ws, ps, packed_backward.data(), packed_backward.size());
  }

  LstmCall call(const std::vector<char>& weights, float* h_now, float* c_now, int threads) const {
    LstmCall call = {};
    call.shape = shape;
    call.packed = weights.data();
    call.packed_size = weights.size();
    call.inputs = inputs.data();
    call.input_rows = rows_read;
    call.split_input = k.split;
    call.steps = int64_t(live.size());
    call.live = live.data();
    call.step_rows = int64_t(places.size() / 2);
    call.rows = rows.data();
    call.reset = reset.data();
    call.reset_h = reset_h.data();
    call.reset_c = reset_c.data();
    call.lanes = k.lanes;
    call.h = h_now;
    call.c = c_now;
    call.cell_clip = 0.3f;
    call.proj_clip = 0.1f;
    call.threads = threads;
    return call;
  }

  // Output, final h and c; with `saved`, what the gradients need.
  Floats forward(int threads, std::vector<char>* saved) const {
    Floats output(grad_output.size(), NAN), h_end = h, c_end = c;
    LstmCall forward = call(packed, h_end.data(), c_end.data(), threads);
    forward.out_rows = places.data();
    forward.output = output.data();
    forward.output_rows = forward.step_rows;
    if (saved) {
      saved->assign(lstm_saved_size(shape, forward.step_rows), '\xff');
      lstm_forward_saving(forward, saved->data(), saved->size());
    } else {
      lstm_forward(forward);
    }
    output.insert(output.end(), h_end.begin(), h_end.end());
    output.insert(output.end(), c_end.begin(), c_end.end());
    return output;
  }

  // All gradients one after the other.
  Floats backward(int threads, const std::vector<char>& saved) const {
    Floats h_before = h, c_before = c, dh = grad_h, dc = grad_c;
    const size_t projections = k.dim != k.projection ? p.size() : 0;
    Floats dx(inputs.size() * (k.split ? 1 : 2), 0.0f), dw(2 * w.size(), NAN), db(2 * b.size(), NAN),
        dp(2 * projections, NAN), dreset_h(reset_h.size(), NAN), dreset_c(reset_c.size(), NAN);
    LstmBackwardCall call = {};
    call.forward = this->call(packed_backward, h_before.data(), c_before.data(), threads);
    std::vector<char> scratch(lstm_backward_scratch_size(call.forward));
    call.saved = saved.data();
    call.saved_size = saved.size();
    call.grad_output = grad_output.data();
    call.grad_h = dh.data();
    call.grad_c = dc.data();
    for (size_t d = 0; d < 2; ++d) {
      call.grad_inputs[d] = dx.data() + d * (k.split ? size_t(k.input) : inputs.size());
      call.grad_weights[d] = dw.data() + d * w.size();
      call.grad_biases[d] = db.data() + d * b.size();
      call.grad_projections[d] = projections ? dp.data() + d * projections : nullptr;
    }
    call.grad_reset_h = dreset_h.data();
    call.grad_reset_c = dreset_c.data();
    call.scratch = scratch.data();
    call.scratch_size = scratch.size();
    lstm_backward(call);
    require(same(h_before, h) && same(c_before, c), "the initial state is left alone");
    for (const Floats* more : {&dw, &db, &dp, &dh, &dc, &dreset_h, &dreset_c})
      dx.insert(dx.end(), more->begin(), more->end());
    return dx;
  }
};

void lstm_case(const Case& k, std::mt19937& rng) {
  const Data data(k, rng);
  const Floats inference = data.forward(1, nullptr);
  std::vector<char> saved;
  require(same(inference, data.forward(1, &saved)), "training forward: bits of inference");
  const Floats expected = data.backward(1, saved);
  for (float value : expected) require(std::isfinite(value), "every gradient is written");
  for (int threads : {2, 3, 4, 7}) {
    std::vector<char> again;
    require(same(inference, data.forward(threads, &again)) && again == saved, "what is kept: same bits");
    require(same(expected, data.backward(threads, saved)), "gradients: same bits");
  }
}

void char_cnn_case(int64_t dim, int64_t tokens, int64_t characters, std::mt19937& rng) {
  const int64_t widths[] = {1, 3, 7}, filters[] = {5, 33, 16}, all = 54;
  const Floats table = random_floats(size_t(20 * dim), rng, deviation);
  const Floats grad = random_floats(size_t(tokens * all), rng, deviation);
  std::vector<int32_t> ids;
  for (int64_t k = 0; k < tokens; ++k) {
    const int64_t length = int64_t(rng() % unsigned(characters + 1));
    for (int64_t j = 0; j < characters; ++j) ids.push_back(j < length ? static_cast<int32_t>(rng() % 4) : 19);
  }
  std::vector<Floats> weights, expected;
  for (size_t b = 0; b < 3; ++b) weights.push_back(random_floats(size_t(widths[b] * dim * filters[b]), rng, deviation));
  for (float& v : weights[1]) v = 0.0f;  // ties everywhere
  for (int threads : {1, 2, 5}) {
    std::vector<Floats> found = {Floats(size_t(tokens * all), NAN), Floats(table.size(), NAN)};
    for (const Floats& weight : weights) found.emplace_back(weight.size(), NAN);
    std::vector<CharBank> banks;
    for (size_t b = 0, first = 0; b < 3; first += size_t(filters[b++]))
      banks.push_back({widths[b], filters[b], int64_t(first), weights[b].data(), found[2 + b].data()});
    const CharCnnCall call = {ids.data(), tokens, characters, 19, table.data(), 20, dim, banks.data(), 3, all, threads};
    std::vector<uint32_t> picks(size_t(tokens * all));
    char_cnn_forward(call, found[0].data(), picks.data());
    char_cnn_backward(call, grad.data(), picks.data(), found[1].data());
    if (expected.empty()) expected = found;
    for (size_t k = 0; k < found.size(); ++k) require(same(expected[k], found[k]), "char_cnn: same bits");
  }
}

}  // namespace

void training_cases() {
  std::mt19937 rng(5);
  for (const Case& k : {Case{1, 1, 1, 1, 1, false}, Case{5, 37, 11, 17, 4, false}, Case{16, 24, 24, 3, 5, true},
                        Case{30, 70, 40, 33, 3, true}, Case{33, 52, 33, 2, 2, false}, Case{8, 64, 16, 64, 6, false}})
    lstm_case(k, rng);
  char_cnn_case(16, 70, 11, rng);
  char_cnn_case(5, 9, 7, rng);
  char_cnn_case(40, 3, 9, rng);
  std::printf("training: clean\n");
}
