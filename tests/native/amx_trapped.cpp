// The AMX engine, instruction for instruction, against its AVX-512 emulation: the same bits at both precisions, for
// any number of rows and threads, clips firing. Stands in for csrc/cpu/cpu_features.cpp.
#include <limits>

#include "../../csrc/cpu/cpu_features.h"
#include "lstm_case.h"
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

Floats run_on(Isa isa, const Case& k, Precision precision, float scale, int threads) {
  chosen = isa;
  std::mt19937 rng(5);
  Data data(k, precision, rng);
  for (float& value : data.inputs) value *= scale;
  return data.run(precision, threads, threads % 3);
}

void compare(const Case& k, Precision precision, float scale) {
  const Floats expected = run_on(Isa::amx_emulated, k, precision, scale, 1);
  for (int threads : {1, 2, 5}) {
    const tile_trap::Counts before = tile_trap::counts();
    const Floats found = run_on(Isa::amx, k, precision, scale, threads);
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
  const Case cases[] = {{1, 1, 1, 1, 1},    {5, 37, 11, 17, 4},  {16, 24, 24, 3, 5}, {300, 70, 40, 33, 3},
                        {33, 130, 33, 2, 2}, {8, 64, 16, 64, 4}, {64, 32, 32, 16, 3}, {20, 17, 5, 40, 6}};
  for (Precision precision : {Precision::high, Precision::medium}) {
    for (const Case& k : cases)
      for (float scale : {1.0f, 100.0f, 1e-38f}) compare(k, precision, scale);
    std::printf("precision %d: the same bits\n", static_cast<int>(precision));
  }
  const tile_trap::Counts all = tile_trap::counts();
  std::printf("%ld configurations, %ld loads, %ld products, %ld stores\n", all.configured, all.loaded, all.multiplied,
              all.stored);
  return 0;
}
