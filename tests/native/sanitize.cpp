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
#include "linear_case.h"
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

void linear_cases(Precision precision) {
  std::mt19937 rng(3);
  for (int64_t rows : {1, 13, 61, 500}) {
    for (const LinearShape& shape : linear_shapes(precision)) {
      const LinearData data(shape, rows, rng);
      const Floats expected = data.run(1);
      for (int threads : {2, 5}) require(same(expected, data.run(threads)), "linear: same bits");
    }
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
    linear_cases(precision);
    std::printf("precision %d on %s: clean\n", int(precision), lstm_isa(precision).c_str());
  }
  training_cases();
  if (argc < 2 || std::strcmp(argv[1], "--no-fork") != 0) forked_child();
  return 0;
}
