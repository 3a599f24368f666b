#include "engine.h"

#if defined(__unix__) || defined(__APPLE__)
#include <sys/mman.h>
#endif

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

namespace elmo_fast::cpu {
namespace {

// By level: what CMake built.
constexpr Level levels[] = {
    {&generic_engine, nullptr},
#ifdef ELMO_FAST_HAS_NEON
    {&neon_engine, nullptr},
#else
    {},
#endif
#ifdef ELMO_FAST_HAS_AVX2
    {&avx2_engine, nullptr},
#else
    {},
#endif
#ifdef ELMO_FAST_HAS_AVX512
    {&avx512_engine, nullptr},
#else
    {},
#endif
#ifdef ELMO_FAST_HAS_AMX
    {&avx512_engine, &amx_engine},
#else
    {},
#endif
#ifdef ELMO_FAST_HAS_AVX512
    {&avx512_engine, &amx_emulated_engine},
#else
    {},
#endif
};
static_assert(sizeof levels / sizeof *levels == isa_count);

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

uint32_t needed_features(const Level& level) { return level.fp32->features | (level.bf16 ? level.bf16->features : 0); }

Isa best_isa(uint32_t features, bool amx_permitted, Isa cap) {
  for (int k = static_cast<int>(cap); k >= 0; --k)
    if (runs(static_cast<Isa>(k), features, amx_permitted)) return static_cast<Isa>(k);
  std::string missing;
  for (int k = 0; k < feature_count; ++k)
    if (generic_engine.features & ~features & (1u << k)) missing += std::string(" ") + feature_name(k);
  throw std::runtime_error("the native module was compiled for processors with" + missing + ", which this one lacks");
}

Isa cpu_isa() {
  static const uint32_t features = cpu_feature_set();
  const Isa highest = cap();
  // A lower cap never asks for permission.
  return best_isa(features, highest == Isa::amx && amx_permitted(), highest);
}

Isa isa_for(Precision precision) {
  require(precision >= Precision::highest && precision <= Precision::medium, "precision: expected 0, 1 or 2");
  const Isa isa = cpu_isa();
  if (precision == Precision::highest) return std::min(isa, Isa::avx512);
  require(level_of(isa).bf16, "precision: high and medium need AMX, which is not available here");
  return isa;
}

const Fp32Engine& fp32_engine() { return *level_of(isa_for(Precision::highest)).fp32; }

const Engine& engine_for(Precision precision) {
  const Level& level = level_of(isa_for(precision));
  if (precision == Precision::highest) return *level.fp32;
  return precision == Precision::high ? level.bf16->high : level.bf16->medium;
}

Label::Label(const char* op, Precision precision, int64_t first, int64_t second, int64_t third) : text{} {
  std::snprintf(text, sizeof text, "%s for %s, precision %d, sizes %lld %lld %lld", op, isa_name(isa_for(precision)),
                static_cast<int>(precision), static_cast<long long>(first), static_cast<long long>(second),
                static_cast<long long>(third));
}

void require(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(what);
}

void check_threads(int threads) { require(threads >= 1 && threads <= 1024, "threads: expected 1 to 1024"); }

void check_range(const int32_t* values, int64_t count, int64_t low, int64_t high, const char* name) {
  for (int64_t k = 0; k < count; ++k)
    if (values[k] < low || values[k] >= high)
      throw std::invalid_argument(std::string(name) + ": expected " + std::to_string(low) + " to " +
                                  std::to_string(high - 1) + ", got " + std::to_string(values[k]));
}

void check_buffer(const void* packed, size_t size, size_t payload) {
  require(packed && reinterpret_cast<uintptr_t>(packed) % 4 == 0, "packed: expected a buffer aligned to 4 bytes");
  if (size < sizeof(Label) + payload)
    throw std::invalid_argument("packed: expected " + std::to_string(sizeof(Label) + payload) + " bytes, got " +
                                std::to_string(size));
}

void begin_packed(void* packed, size_t size, size_t payload, const Label& label) {
  check_buffer(packed, size, payload);
#ifdef MADV_HUGEPAGE
  constexpr uintptr_t page = 2 << 20;
  const auto address = reinterpret_cast<uintptr_t>(packed);
  const uintptr_t begin = (address + page - 1) / page * page, end = (address + size) / page * page;
  // Where there are none, the pages stay small.
  if (begin < end) (void)madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#endif
  std::memcpy(packed, &label, sizeof label);
}

void check_packed(const void* packed, size_t size, size_t payload, const Label& label) {
  check_buffer(packed, size, 0);
  const char* bytes = static_cast<const char*>(packed);
  std::string found(bytes, strnlen(bytes, sizeof(Label)));
  if (std::any_of(found.begin(), found.end(), [](char c) { return c < ' ' || c > '~'; })) found.clear();
  if (found != label.text)
    throw std::invalid_argument(std::string("packed: expected ") + label.text + "; got " +
                                (found.empty() ? "something else" : found));
  check_buffer(packed, size, payload);
}

}  // namespace elmo_fast::cpu
