// Runs the CPU engine over many shapes, thread counts and concurrent callers, compares bits, and prints a digest of
// them. Built with sanitizers, or as ELMO_FAST_TRAPPED, without csrc/cpu/isa.cpp, to carry out AMX's instructions.
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "../../csrc/cpu/threads.h"
#include "cases.h"

#ifdef ELMO_FAST_TRAPPED
#include "../../csrc/cpu/engine.h"
#include "tile_trap.h"

namespace elmo_fast {
std::vector<std::pair<std::string, bool>> cpu_features() { return {}; }
bool amx_permitted() { return true; }
Isa cpu_isa() { return std::getenv("ELMO_FAST_CPU_ISA") == std::string("amx") ? Isa::amx : Isa::amx_emulated; }
const char* isa_name(Isa isa) { return isa == Isa::amx ? "amx" : "amx-emulated"; }
}  // namespace elmo_fast
constexpr float scales[] = {1.0f, 100.0f, 1e-38f};
constexpr int thread_counts[] = {2, 5};
#else
constexpr float scales[] = {1.0f};
constexpr int thread_counts[] = {2, 3, 4, 7};
#endif

namespace {

void forwards(Precision precision) {
  std::mt19937 rng(1);
  for (float scale : scales)
    for (const LstmCase& k : lstm_cases) {
      const LstmData data(k, precision, rng, scale);
      for (Inputs from : {Inputs::gathered, Inputs::precomputed}) {
        const Floats expected = written(data.forward(1, 0, from));
        for (int threads : thread_counts)
          require(same(expected, data.forward(threads, threads % 3, from)), "same bits");
      }
    }
}

void gradients() {
  std::mt19937 rng(5);
  int turn = 0;
  for (const LstmCase& k : lstm_cases) {
    const LstmData data(k, Precision::highest, rng, 1.0f, 0.3f);
    const Inputs from = turn++ % 6 / 2 == 1 ? Inputs::split : Inputs::gathered;
    const Floats inference = data.forward(1, 0, from);
    std::vector<char> saved;
    require(same(inference, data.forward(1, 0, from, &saved)), "training forward: bits of inference");
    const Floats expected = written(data.backward(1, saved, from));
    for (int threads : {2, 3, 4, 7}) {
      std::vector<char> again;
      require(same(inference, data.forward(threads, 0, from, &again)) && again == saved, "what is saved: same bits");
      require(same(expected, data.backward(threads, saved, from)), "gradients: same bits");
    }
  }
}

void char_cnn_case(int64_t dim, int64_t tokens, int64_t characters, std::mt19937& rng) {
  const int64_t widths[] = {1, 3, 7}, filters[] = {5, 33, 16}, all = 54;
  const Floats table = random_floats(size_t(20 * dim), rng), grad = random_floats(size_t(tokens * all), rng);
  std::vector<int32_t> ids;
  for (int64_t k = 0; k < tokens; ++k) {
    const int64_t length = int64_t(rng() % unsigned(characters + 1));
    for (int64_t j = 0; j < characters; ++j) ids.push_back(j < length ? static_cast<int32_t>(rng() % 4) : 19);
  }
  std::vector<Floats> weights, expected;
  for (size_t b = 0; b < 3; ++b) weights.push_back(random_floats(size_t(widths[b] * dim * filters[b]), rng));
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

void concurrent_callers(Precision precision) {
  std::mt19937 rng(2);
  const LstmData data({{16, 48, 8}, 5, 12}, precision, rng);
  const Floats expected = data.forward(1);
  std::vector<std::thread> callers;
  for (int k = 0; k < 4; ++k)
    callers.emplace_back([&, k] {
      for (int turn = 0; turn < 8; ++turn) require(same(expected, data.forward(1 + (k + turn) % 5, 2)), "callers");
    });
  for (std::thread& caller : callers) caller.join();
}

void linear_cases(Precision precision) {
  std::mt19937 rng(3);
  for (float scale : scales)
    for (int64_t rows : {1, 13, 16, 61, 500})
      for (const LinearShape& shape : linear_shapes(precision)) {
        const LinearData data(shape, rows, rng, scale);
        const Floats expected = written(data.run(1));
        for (int threads : {2, 5}) require(same(expected, data.run(threads)), "linear: same bits");
      }
}

// Each thread in turn adds to a plain integer: a race unless the barrier orders memory.
void barrier_orders_memory() {
  cpu::Barrier barrier(4);
  int value = 0;
  cpu::run_together(4, [&](int rank) {
    for (int turn = 0; turn < 4 * 300; ++turn) {
      if (turn % 4 == rank) ++value;
      barrier.wait();
    }
  });
  require(value == 4 * 300, "barrier");
}

// ThreadSanitizer does not follow a fork from a process with threads; --no-fork leaves this out there.
void forked_child() {
  std::mt19937 rng(4);
  const LstmData data({{16, 48, 8}, 5, 12}, Precision::highest, rng);
  const Floats expected = data.forward(4);
  const pid_t child = fork();
  if (child == 0) _exit(same(expected, data.forward(4)) ? 0 : 1);
  int status = 1;
  waitpid(child, &status, 0);
  require(status == 0, "forked child");
}

}  // namespace

int main(int argc, char** argv) {
#ifdef ELMO_FAST_TRAPPED
  tile_trap::install();
#endif
  barrier_orders_memory();
  for (Precision precision : {Precision::highest, Precision::high, Precision::medium}) {
    if (lstm_isa(precision).empty()) continue;
    forwards(precision);
    concurrent_callers(precision);
    linear_cases(precision);
    std::printf("precision %d on %s: clean, %zx\n", int(precision), lstm_isa(precision).c_str(), digest);
  }
  gradients();
  std::mt19937 rng(6);
  char_cnn_case(16, 70, 11, rng);
  char_cnn_case(5, 9, 7, rng);
  char_cnn_case(40, 3, 9, rng);
  if (argc < 2 || std::strcmp(argv[1], "--no-fork") != 0) forked_child();
#ifdef ELMO_FAST_TRAPPED
  require(tile_trap::in_use == 0, "every thread released its tiles");
  require(cpu_isa() != Isa::amx || (tile_trap::products > 0 && tile_trap::loads > 0 && tile_trap::stores > 0),
          "tile instructions were carried out");
#endif
  return 0;
}
