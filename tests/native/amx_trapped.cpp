// The AMX engine, instruction for instruction, against its AVX-512 emulation: the same bits at both precisions, for
// any number of rows and threads, clips firing. Stands in for csrc/cpu/isa.cpp.
#include "../../csrc/cpu/isa.h"
#include "cases.h"
#include "tile_trap.h"

namespace elmo_fast {
namespace {
Isa chosen = Isa::amx;
}

std::vector<std::pair<std::string, bool>> cpu_features() { return {}; }
bool amx_permitted() { return true; }
Isa cpu_isa() { return chosen; }
const char* isa_name(Isa isa) { return isa == Isa::amx ? "amx" : "amx-emulated"; }
}  // namespace elmo_fast

namespace {

Floats run_on(Isa isa, const LstmCase& k, Precision precision, float scale, int threads) {
  chosen = isa;
  std::mt19937 rng(5);
  LstmData data(k, precision, rng);
  for (float& value : data.inputs) value *= scale;
  return data.forward(threads, threads % 3);
}

Floats run_on(Isa isa, const LinearShape& shape, int64_t rows, float scale, int threads) {
  chosen = isa;
  std::mt19937 rng(6);
  LinearData data(shape, rows, rng);
  for (float& value : data.x) value *= scale;
  return data.run(threads);
}

// `run` with an instruction set and a number of threads.
template <class Run>
void compare(const Run& run) {
  const Floats expected = run(Isa::amx_emulated, 1);
  for (int threads : {1, 2, 5}) {
    const tile_trap::Counts before = tile_trap::counts();
    const Floats found = run(Isa::amx, threads);
    const tile_trap::Counts after = tile_trap::counts();
    require(after.multiplied > before.multiplied && after.loaded > before.loaded && after.stored > before.stored,
            "tile instructions were carried out");
    require(tile_trap::threads_with_tiles() == 0, "every thread released its tiles");
    require(same(expected, found), "the same bits");
  }
}

}  // namespace

int main() {
  tile_trap::install();
  const LstmCase cases[] = {{1, 1, 1, 1, 1},     {5, 37, 11, 17, 4}, {16, 24, 24, 3, 5},  {300, 70, 40, 33, 3},
                            {33, 130, 33, 2, 2}, {8, 64, 16, 64, 4}, {64, 32, 32, 16, 3}, {20, 17, 5, 40, 6}};
  for (Precision precision : {Precision::high, Precision::medium}) {
    for (float scale : {1.0f, 100.0f, 1e-38f}) {
      for (const LstmCase& k : cases)
        compare([&](Isa isa, int threads) { return run_on(isa, k, precision, scale, threads); });
      for (const LinearShape& shape : linear_shapes(precision))
        for (int64_t rows : {1, 16, 45, 460})
          compare([&](Isa isa, int threads) { return run_on(isa, shape, rows, scale, threads); });
    }
    std::printf("precision %d: the same bits\n", static_cast<int>(precision));
  }
  const tile_trap::Counts all = tile_trap::counts();
  std::printf("%ld configurations, %ld loads, %ld products, %ld stores\n", all.configured, all.loaded, all.multiplied,
              all.stored);
  return 0;
}
