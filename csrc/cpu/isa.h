// Instruction sets: the features of a processor, those that a translation unit is compiled with, and the levels of the
// engine.
#pragma once

#include <cstdint>
#include <string>

namespace elmo_fast {

// In ascending order; generic and neon are those of AArch64, all but neon those of x86. amx_emulated is AVX-512 code
// that computes what AMX would, bit for bit; tests ask for it, detection never finds it.
enum class Isa : int32_t { generic, neon, avx2, avx512, amx, amx_emulated };
constexpr int isa_count = 6;

// Of x86. A set of them has a bit for each.
// clang-format off
enum class Feature : uint32_t {
  sse3, ssse3, sse4_1, sse4_2, popcnt, xsave, avx, f16c, fma, avx2, bmi1, bmi2, lzcnt, movbe,
  avx512f, avx512bw, avx512cd, avx512dq, avx512vl, avx512_bf16, amx_tile, amx_bf16
};
// clang-format on
constexpr int feature_count = 22;

constexpr uint32_t bit(Feature feature) { return 1u << static_cast<uint32_t>(feature); }

// Internal linkage: it differs between translation units.
namespace {

// What the flags of this translation unit let the compiler use. An engine carries this set, and detection asks for it:
// flags and check cannot differ.
constexpr uint32_t compiled_features() {
  uint32_t set = 0;
#ifdef __SSE3__
  set |= bit(Feature::sse3);
#endif
#ifdef __SSSE3__
  set |= bit(Feature::ssse3);
#endif
#ifdef __SSE4_1__
  set |= bit(Feature::sse4_1);
#endif
#ifdef __SSE4_2__
  set |= bit(Feature::sse4_2);
#endif
#ifdef __POPCNT__
  set |= bit(Feature::popcnt);
#endif
#ifdef __XSAVE__
  set |= bit(Feature::xsave);
#endif
#ifdef __AVX__
  set |= bit(Feature::avx);
#endif
#ifdef __F16C__
  set |= bit(Feature::f16c);
#endif
#ifdef __FMA__
  set |= bit(Feature::fma);
#endif
#ifdef __AVX2__
  set |= bit(Feature::avx2);
#endif
#ifdef __BMI__
  set |= bit(Feature::bmi1);
#endif
#ifdef __BMI2__
  set |= bit(Feature::bmi2);
#endif
#ifdef __LZCNT__
  set |= bit(Feature::lzcnt);
#endif
#ifdef __MOVBE__
  set |= bit(Feature::movbe);
#endif
#ifdef __AVX512F__
  set |= bit(Feature::avx512f);
#endif
#ifdef __AVX512BW__
  set |= bit(Feature::avx512bw);
#endif
#ifdef __AVX512CD__
  set |= bit(Feature::avx512cd);
#endif
#ifdef __AVX512DQ__
  set |= bit(Feature::avx512dq);
#endif
#ifdef __AVX512VL__
  set |= bit(Feature::avx512vl);
#endif
#ifdef __AVX512BF16__
  set |= bit(Feature::avx512_bf16);
#endif
#if defined(__AMX_TILE__) || defined(__AMXTILE__)  // the second is clang 14's
  set |= bit(Feature::amx_tile);
#endif
#if defined(__AMX_BF16__) || defined(__AMXBF16__)
  set |= bit(Feature::amx_bf16);
#endif
  return set;
}

}  // namespace

// Features that this processor has and whose registers the operating system saves.
uint32_t cpu_feature_set();

// Whether this process may use AMX tile data. Linux requires a request, which the first call makes.
bool amx_permitted();

// In the order of Feature.
const char* feature_name(int feature);
const char* isa_name(Isa isa);

// The level of a name. Throws std::invalid_argument when there is none.
Isa isa_named(const std::string& name);

}  // namespace elmo_fast
