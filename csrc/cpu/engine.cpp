#include "engine.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <stdexcept>

#include "packed.h"

namespace elmo_fast::cpu {

// Constants of engine_isa.cpp: a lookup runs no code of their instruction set. CMake determines which are built.
extern const Engines generic_engine, neon_engine, neon_dotprod_engine, avx2_engine, avx_vnni_engine, avx512_engine,
    avx512_vnni_engine, avx512_bf16_engine, amx_engine;

namespace {

#define ELMO_FAST_BUILT(isa) (ELMO_FAST_HAS_##isa ? &isa##_engine : nullptr)
constexpr const Engines *generic = ELMO_FAST_BUILT(generic), *neon = ELMO_FAST_BUILT(neon),
                        *neon_dotprod = ELMO_FAST_BUILT(neon_dotprod), *avx2 = ELMO_FAST_BUILT(avx2),
                        *avx_vnni = ELMO_FAST_BUILT(avx_vnni), *avx512 = ELMO_FAST_BUILT(avx512),
                        *avx512_vnni = ELMO_FAST_BUILT(avx512_vnni), *avx512_bf16 = ELMO_FAST_BUILT(avx512_bf16),
                        *amx = ELMO_FAST_BUILT(amx);
#undef ELMO_FAST_BUILT

constexpr Level levels[] = {{Isa::generic, "generic", {generic}},
                            {Isa::neon, "neon", {neon}},
                            {Isa::neon_dotprod, "neon-dotprod", {neon_dotprod, neon}},
                            {Isa::avx2, "avx2", {avx2}},
                            {Isa::avx_vnni, "avx-vnni", {avx_vnni, avx2}},
                            {Isa::avx512, "avx512", {avx512}},
                            {Isa::avx512_vnni, "avx512-vnni", {avx512_vnni, avx512}},
                            {Isa::avx512_bf16, "avx512-bf16", {avx512_bf16, avx512_vnni, avx512}},
                            {Isa::amx, "amx", {amx, avx512}}};

constexpr bool are_in_order() {
  for (int k = 0; k < isa_count; ++k)
    if (levels[k].isa != static_cast<Isa>(k)) return false;
  return std::size(levels) == isa_count;
}
static_assert(are_in_order(), "expected a row for each Isa, in its order");

// On AMD's processors a dot of bf16 pairs takes the time of a multiply-add, on Intel's twice that.
bool prefers_bf16_dots(const Processor& cpu) { return cpu.vendor == "AuthenticAMD"; }

bool runs(const Level& level, const Processor& cpu) {
  return fp32_engines(level) && (needed_features(level) & ~cpu.features) == 0 &&
         (level.isa != Isa::amx || cpu.permits_amx);
}

Isa cap() {
  const char* name = std::getenv("ELMO_FAST_CPU_ISA");
  return name && *name ? isa_named(name) : Isa::amx;
}

bool has(const Engine& engine) { return engine.lstm.run != nullptr; }

}  // namespace

const Level& level_of(Isa isa) { return levels[static_cast<int>(isa)]; }

Isa isa_named(const std::string& name) {
  std::string expected;
  for (const Level& level : levels) {
    if (name == level.name) return level.isa;
    expected += (expected.empty() ? "" : ", ") + std::string(level.name);
  }
  throw std::invalid_argument("ELMO_FAST_CPU_ISA: expected one of " + expected + ", got '" + name + "'");
}

const Engines* fp32_engines(const Level& level) {
  if (!level.engines[0]) return nullptr;
  for (const Engines* engines : level.engines)
    if (engines && engines->training.run) return engines;
  return nullptr;
}

uint32_t needed_features(const Level& level) {
  uint32_t features = 0;
  for (const Engines* engines : level.engines) features |= engines ? engines->features : 0;
  return features;
}

Isa best_isa(const Processor& cpu, Isa cap) {
  for (int k = static_cast<int>(cap); k >= 0; --k) {
    // Asked for by name, the dots of bf16 also run where they are slow.
    if (levels[k].isa == Isa::avx512_bf16 && cap != Isa::avx512_bf16 && !prefers_bf16_dots(cpu)) continue;
    if (runs(levels[k], cpu)) return levels[k].isa;
  }
  std::string missing;
  for (int k = 0; k < feature_count; ++k)
    if (generic->features & ~cpu.features & (1u << k)) missing += std::string(" ") + feature_table[k].name;
  throw std::runtime_error("the native module was compiled for processors with" + missing + ", which this one lacks");
}

Isa cpu_isa() {
  static const Processor own = {cpu_vendor(), cpu_feature_set(), false};
  const Isa highest = cap();
  Processor cpu = own;
  cpu.permits_amx = highest == Isa::amx && amx_permitted();  // a lower cap never asks for permission
  return best_isa(cpu, highest);
}

const Engine* engine_of(const Level& level, Precision precision) {
  if (!fp32_engines(level)) return nullptr;
  for (const Engines* engines : level.engines)
    if (engines && has((*engines)[precision])) return &(*engines)[precision];
  return nullptr;
}

Isa isa_for(Precision precision) {
  const int number = static_cast<int>(precision);
  require(number >= 0 && number < precision_count, "precision: expected one of the numbers of Precision");
  const Engine* const engine = engine_of(level_of(cpu_isa()), precision);
  require(engine, "precision: high needs AMX, which is not available here");
  const auto has_it = [&](const Level& level) { return engine_of(level, precision) == engine; };
  return std::find_if(std::begin(levels), std::end(levels), has_it)->isa;
}

const Engines& fp32_engines() { return *fp32_engines(level_of(isa_for(Precision::highest))); }

const Engine& engine_for(Precision precision) { return *engine_of(level_of(isa_for(precision)), precision); }

}  // namespace elmo_fast::cpu
