// Runs the CPU engine over many shapes, thread counts and concurrent callers and compares bits; meant to be built
// with sanitizers (run_sanitizers.sh). Every buffer has its exact size, so that a stray access is seen.
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "../../csrc/cpu/thread_pool.h"
#include "../../csrc/projected_lstm.h"

void training_cases();  // sanitize_training.cpp

namespace {

using namespace elmo_fast;
using Floats = std::vector<float>;

Floats random_floats(size_t count, std::mt19937& rng) {
  std::normal_distribution<float> normal(0.0f, 0.1f);
  Floats values(count);
  for (float& v : values) v = normal(rng);
  return values;
}

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

void require(bool holds, const char* what) {
  if (holds) return;
  std::printf("failed: %s\n", what);
  std::exit(1);
}

bool same(const Floats& a, const Floats& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

void lstm_cases(Precision precision) {
  std::mt19937 rng(1);
  for (const Case& k : {Case{1, 1, 1, 1, 1}, Case{5, 37, 11, 17, 4}, Case{16, 24, 24, 3, 5}, Case{300, 70, 40, 33, 3},
                        Case{33, 520, 33, 2, 2}, Case{8, 64, 16, 64, 6}}) {
    const Data data(k, precision, rng);
    const Floats expected = data.run(precision, 1, 0);
    const Floats tabled = data.run(precision, 1, 0, true);
    for (float value : expected) require(std::isfinite(value), "every output is written");
    for (float value : tabled) require(std::isfinite(value), "every output is written from products");
    for (int threads : {2, 3, 4, 7}) require(same(expected, data.run(precision, threads, threads % 3)), "same bits");
    require(same(tabled, data.run(precision, 3, 1, true)), "same bits from products");
  }
}

void concurrent_callers(Precision precision) {
  std::mt19937 rng(2);
  const Data data({16, 48, 8, 5, 12}, precision, rng);
  const Floats expected = data.run(precision, 1, 0);
  std::vector<std::thread> callers;
  for (int k = 0; k < 4; ++k)
    callers.emplace_back([&, k] {
      for (int turn = 0; turn < 8; ++turn)
        require(same(expected, data.run(precision, 1 + (k + turn) % 5, 2)), "callers");
    });
  for (std::thread& caller : callers) caller.join();
}

void linear_case(const LinearShape& shape, int64_t rows, std::mt19937& rng) {
  const size_t k = size_t(shape.input), m = size_t(shape.output), n = size_t(rows);
  const Floats x = random_floats(n * k, rng), w = random_floats(k * m, rng), b = random_floats(m, rng);
  const bool highway = shape.epilogue == Epilogue::highway;
  std::vector<char> packed(linear_packed_size(shape));
  linear_pack(shape, w.data(), b.data(), highway ? w.data() : nullptr, highway ? b.data() : nullptr, packed.data(),
              packed.size());
  Floats expected;
  for (int threads : {1, 2, 5}) {
    Floats y(n * m, NAN);
    linear_forward({shape, packed.data(), packed.size(), x.data(), rows, shape.input, y.data(), shape.output, threads});
    if (expected.empty()) expected = y;
    require(same(expected, y), "linear: same bits");
  }
}

void linear_cases() {
  std::mt19937 rng(3);
  for (int64_t rows : {1, 13, 61, 500}) {
    linear_case({7, 3, Epilogue::none}, rows, rng);
    linear_case({300, 37, Epilogue::relu}, rows, rng);
    linear_case({40, 40, Epilogue::highway}, rows, rng);
  }
}

struct Relay {
  cpu::Barrier barrier;
  int value = 0;
};

// Each thread in turn adds to a plain integer: a race unless the barrier orders memory.
void relay(void* context, int rank) {
  Relay& shared = *static_cast<Relay*>(context);
  for (int turn = 0; turn < 4 * 300; ++turn) {
    if (turn % 4 == rank) ++shared.value;
    shared.barrier.wait();
  }
}

void barrier_orders_memory() {
  Relay shared;
  shared.barrier.reset(4);
  cpu::run_together(4, relay, &shared);
  require(shared.value == 4 * 300, "barrier");
}

// ThreadSanitizer does not follow a fork from a process with threads; run_sanitizers.sh leaves this out there.
void forked_child() {
  std::mt19937 rng(4);
  const Data data({16, 48, 8, 5, 12}, Precision::highest, rng);
  const Floats expected = data.run(Precision::highest, 4, 0);
  const pid_t child = fork();
  if (child == 0) _exit(same(expected, data.run(Precision::highest, 4, 0)) ? 0 : 1);
  int status = 1;
  waitpid(child, &status, 0);
  require(status == 0, "forked child");
}

}  // namespace

int main(int argc, char** argv) {
  barrier_orders_memory();
  for (Precision precision : {Precision::highest, Precision::high, Precision::medium}) {
    if (lstm_isa(precision).empty()) continue;
    lstm_cases(precision);
    concurrent_callers(precision);
    std::printf("precision %d on %s: clean\n", int(precision), lstm_isa(precision).c_str());
  }
  linear_cases();
  training_cases();
  if (argc < 2 || std::strcmp(argv[1], "--no-fork") != 0) forked_child();
  return 0;
}
