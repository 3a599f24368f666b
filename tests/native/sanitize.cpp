// Runs the CPU engine over many shapes, thread counts and concurrent callers and compares bits; meant to be built
// with sanitizers (run_sanitizers.sh).
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "../../csrc/cpu/thread_pool.h"
#include "lstm_case.h"

void training_cases();  // sanitize_training.cpp

namespace {

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
