#include "engine.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <stdexcept>

#include "packed.h"

namespace elmo_fast::cpu {
namespace {

// By level; empty for levels that CMake did not build. Engines that are not built are named only in discarded code.
// Engines are in the order of Precision.
#define ELMO_FAST_FP32_LEVEL(isa, name)                                                  \
  []() -> Level {                                                                        \
    if constexpr (ELMO_FAST_HAS_##isa)                                                   \
      return {&isa##_engine,                                                             \
              {&isa##_engine.highest, nullptr, &isa##_engine.medium, &isa##_engine.low}, \
              &isa##_engine.features};                                                   \
    else return {};                                                                      \
  }(),
#define ELMO_FAST_DOTS_LEVEL(isa, name, fp32)                                              \
  []() -> Level {                                                                          \
    if constexpr (ELMO_FAST_HAS_##isa && ELMO_FAST_HAS_##fp32)                             \
      return {&fp32##_engine,                                                              \
              {&fp32##_engine.highest, nullptr, &fp32##_engine.medium, &isa##_engine.low}, \
              &isa##_engine.features};                                                     \
    else return {};                                                                        \
  }(),
#define ELMO_FAST_BF16_LEVEL(isa, name, fp32, dots)                                        \
  []() -> Level {                                                                          \
    if constexpr (ELMO_FAST_HAS_##isa && ELMO_FAST_HAS_##fp32 && ELMO_FAST_HAS_##dots)     \
      return {&fp32##_engine,                                                              \
              {&fp32##_engine.highest, nullptr, &isa##_engine.medium, &dots##_engine.low}, \
              &isa##_engine.features};                                                     \
    else return {};                                                                        \
  }(),
#define ELMO_FAST_TILE_LEVEL(isa, name, fp32)                                                        \
  []() -> Level {                                                                                    \
    if constexpr (ELMO_FAST_HAS_##isa && ELMO_FAST_HAS_##fp32)                                       \
      return {&fp32##_engine,                                                                        \
              {&fp32##_engine.highest, &isa##_engine.high, &isa##_engine.medium, &isa##_engine.low}, \
              &isa##_engine.features};                                                               \
    else return {};                                                                                  \
  }(),
constexpr Level levels[] = {
    ELMO_FAST_LEVELS(ELMO_FAST_FP32_LEVEL, ELMO_FAST_DOTS_LEVEL, ELMO_FAST_BF16_LEVEL, ELMO_FAST_TILE_LEVEL)};
#undef ELMO_FAST_FP32_LEVEL
#undef ELMO_FAST_DOTS_LEVEL
#undef ELMO_FAST_BF16_LEVEL
#undef ELMO_FAST_TILE_LEVEL

bool runs(Isa isa, uint32_t features, bool amx_permitted) {
  const Level& level = level_of(isa);
  return level.fp32 && (needed_features(level) & ~features) == 0 && (isa != Isa::amx || amx_permitted);
}

Isa cap() {
  const char* name = std::getenv("ELMO_FAST_CPU_ISA");
  return name && *name ? isa_named(name) : Isa::amx;
}

}  // namespace

const Level& level_of(Isa isa) { return levels[static_cast<int>(isa)]; }

uint32_t needed_features(const Level& level) { return level.fp32->features | *level.features; }

Isa best_isa(uint32_t features, bool amx_permitted, Isa cap) {
  for (int k = static_cast<int>(cap); k >= 0; --k)
    if (runs(static_cast<Isa>(k), features, amx_permitted)) return static_cast<Isa>(k);
  std::string missing;
  for (int k = 0; k < feature_count; ++k)
    if (generic_engine.features & ~features & (1u << k)) missing += std::string(" ") + feature_name(k);
  throw std::runtime_error("the native module was compiled for processors with" + missing + ", which this one lacks");
}

Isa cpu_isa() {
  const Isa highest = cap();
  // Asked for by name, the dots of bf16 also run where they are slow.
  static const uint32_t own = cpu_feature_set();
  const uint32_t features = highest == Isa::avx512_bf16 ? own | bit(Feature::sse4a) : own;
  // A lower cap never asks for permission.
  return best_isa(features, highest == Isa::amx && amx_permitted(), highest);
}

const Engine* engine_of(const Level& level, Precision precision) { return level.of[static_cast<int>(precision)]; }

Isa isa_for(Precision precision) {
  const int number = static_cast<int>(precision);
  require(number >= 0 && number < precision_count, "precision: expected one of the numbers of Precision");
  const Engine* const engine = engine_of(level_of(cpu_isa()), precision);
  require(engine, "precision: high needs AMX, which is not available here");
  const auto has_it = [&](const Level& level) { return engine_of(level, precision) == engine; };
  return static_cast<Isa>(std::find_if(std::begin(levels), std::end(levels), has_it) - std::begin(levels));
}

const Fp32Engine& fp32_engine() { return *level_of(isa_for(Precision::highest)).fp32; }

const Engine& engine_for(Precision precision) { return *engine_of(level_of(isa_for(precision)), precision); }

}  // namespace elmo_fast::cpu
