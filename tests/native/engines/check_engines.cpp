// Every op on every instruction set of this processor against the generic one, a line for each case:
//   check_engines [LEVEL]
//   check_engines best
// Ends with 1 when a case is off, when there is none, or when the best level is not the one that is given. The second
// form prints the best level alone.
#include <algorithm>
#include <cstdlib>
#include <exception>
#include <tuple>

#include "char_cnn_cases.h"
#include "linear_cases.h"
#include "lstm_cases.h"

namespace {

using namespace elmo_fast;

void set_cap(const char* name) {
  setenv("ELMO_FAST_CPU_ISA", name, 1);
}

// For processors that lack any one or two features, for random ones, and for a system that does not permit AMX: the
// level that is chosen needs nothing that is not there, and all levels above it do, but for the dots of bf16 that were
// not asked for on a processor that is not AMD's.
bool selection_holds(Isa cap) {
  std::vector<uint32_t> sets = {~0u, 0};
  for (int a = 0; a < feature_count; ++a)
    for (int b = a; b < feature_count; ++b) sets.push_back(~((1u << a) | (1u << b)));
  std::minstd_rand generator;
  for (int k = 0; k < 1000; ++k) sets.push_back(static_cast<uint32_t>(generator()) | cpu::needed_features(cpu::level_of(Isa::generic)));
  for (const uint32_t features : sets)
    for (const Processor& processor : {Processor{"AuthenticAMD", features, false}, Processor{"GenuineIntel", features, false},
                                       Processor{"GenuineIntel", features, true}}) {
      const auto runs = [&](Isa isa) {
        const cpu::Level& level = cpu::level_of(isa);
        const bool is_slow = isa == Isa::avx512_bf16 && cap != isa && processor.vendor != "AuthenticAMD";
        return cpu::fp32_engines(level) && !(cpu::needed_features(level) & ~features) && !is_slow &&
               (isa != Isa::amx || processor.permits_amx);
      };
      if (!runs(Isa::generic)) continue;
      const Isa best = cpu::best_isa(processor, cap);
      if (best > cap || !runs(best)) return false;
      for (int k = static_cast<int>(best) + 1; k <= static_cast<int>(cap); ++k)
        if (runs(static_cast<Isa>(k))) return false;
    }
  return true;
}

// Threads by the time that work takes: none for less than the least share.
bool threads_follow_work() {
  bool holds = cpu::threads_for(99e3, 8) == 1 && cpu::threads_for(250e3, 8) == 2 && cpu::threads_for(1e9, 8) == 8;
  cpu::set_least_share(0);  // from here on small cases run on all threads
  return holds && cpu::threads_for(1, 8) == 8;
}

Engine check(const char* isa, Precision precision) {
  Engine engine = {isa, precision};
  try {
    check_linears(engine);
    check_lstms(engine);
    if (engine.trains()) {
      check_char_cnns(engine);
      engine.expect("selection", selection_holds(cpu::cpu_isa()));
    }
  } catch (const std::exception& error) {
    engine.expect(error.what(), false);
  }
  std::printf("%s %s: digest %016llx\n", isa, engine.precision_name(), static_cast<unsigned long long>(engine.digest));
  return engine;
}

}  // namespace

int main(int count, char** arguments) {
  const std::string best = cpu::level_of(cpu::cpu_isa()).name;
  if (count > 1 && arguments[1] == std::string("best")) return std::printf("%s\n", best.c_str()), 0;
  if (count > 1 && best != arguments[1]) return std::printf("best: expected %s, got %s\n", arguments[1], best.c_str()), 1;
  const Isa highest = cpu::cpu_isa();
  int cases = 1, failures = threads_follow_work() ? 0 : 1;
  std::vector<Engine> engines;
  for (int k = 0; k < isa_count; ++k) {
    const Isa isa = static_cast<Isa>(k);
    const char* const name = cpu::level_of(isa).name;
    set_cap(name);
    if (isa > highest || cpu::cpu_isa() != isa) continue;
    for (const auto& [precision, _] : precision_names) {
      if (lstm_isa(precision) != name) continue;  // it has the engine of a level below, or none
      engines.push_back(check(name, precision));
      cases += engines.back().cases, failures += engines.back().failures;
    }
  }
  // Levels with the same vectors have the same bits, except where only one of them rounds both operands, or adds pairs.
  const auto vectors = [](const Engine& engine) {
    return std::make_tuple(cpu::fp32_engines(cpu::level_of(cpu::isa_named(engine.isa))), engine.limit(), engine.has_dots());
  };
  for (size_t k = 0; k < engines.size(); ++k)
    for (size_t before = 0; before < k; ++before)
      if (engines[before].precision == engines[k].precision && vectors(engines[before]) == vectors(engines[k])) {
        engines[k].cases = engines[k].failures = 0;
        engines[k].expect("the bits of " + engines[before].isa, engines[k].digest == engines[before].digest);
        cases += engines[k].cases, failures += engines[k].failures;
      }
  std::printf("best: %s\n%d passed, %d failed\n", best.c_str(), cases - failures, failures);
  return failures != 0 || cases == 0;
}
