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

// run(threads) by the instructions and by the emulation.
template <class Run>
void compare(const Run& run) {
  chosen = Isa::amx_emulated;
  const Floats expected = run(1);
  chosen = Isa::amx;
  for (int threads : {1, 2, 5}) {
    const long before[] = {tile_trap::products, tile_trap::loads, tile_trap::stores};
    const Floats found = run(threads);
    require(tile_trap::products > before[0] && tile_trap::loads > before[1] && tile_trap::stores > before[2],
            "tile instructions were carried out");
    require(tile_trap::in_use == 0, "every thread released its tiles");
    require(same(expected, found), "the same bits");
  }
}

}  // namespace

int main() {
  tile_trap::install();
  for (Precision precision : {Precision::high, Precision::medium}) {
    for (float scale : {1.0f, 100.0f, 1e-38f}) {
      for (const LstmCase& k : lstm_cases)
        compare([&](int threads) {
          std::mt19937 rng(5);
          return LstmData(k, precision, rng, scale).forward(threads, threads % 3);
        });
      for (const LinearShape& shape : linear_shapes(precision))
        for (int64_t rows : {1, 16, 45, 460})
          compare([&](int threads) {
            std::mt19937 rng(6);
            return LinearData(shape, rows, rng, scale).run(threads);
          });
    }
    std::printf("precision %d: the same bits\n", static_cast<int>(precision));
  }
  return 0;
}
