// Instruction sets: the levels of the engine, the features of a processor, and the features that a translation unit is
// compiled with. A new level needs a row of ELMO_FAST_LEVELS, a vector type in vec/ and a line of CMakeLists.txt.
#pragma once

#include <cstdint>
#include <string>

namespace elmo_fast {

// The levels in ascending order, one per row: constant and name. An FP32 level has the engine of its constant's name,
// in the precisions that need no other instructions; a DOTS level has an engine for 8-bit products, a BF16 level one
// for bf16 products, a TILES level one for all products on tiles, and they use other levels' engines for the rest.
// AArch64 has generic and the levels of NEON, x86 the others. amx_emulated is AVX-512 code with results bitwise equal
// to AMX, for tests; it is never detected.
// clang-format off
#define ELMO_FAST_LEVELS(FP32, DOTS, BF16, TILES)         \
  FP32(generic, "generic")                                \
  FP32(neon, "neon")                                      \
  DOTS(neon_dotprod, "neon-dotprod", neon)                \
  FP32(avx2, "avx2")                                      \
  DOTS(avx_vnni, "avx-vnni", avx2)                        \
  FP32(avx512, "avx512")                                  \
  DOTS(avx512_vnni, "avx512-vnni", avx512)                \
  BF16(avx512_bf16, "avx512-bf16", avx512, avx512_vnni)   \
  TILES(amx, "amx", avx512)                               \
  TILES(amx_emulated, "amx-emulated", avx512)
// clang-format on

#define ELMO_FAST_CONSTANT(isa, ...) isa,
enum class Isa : int32_t {
  ELMO_FAST_LEVELS(ELMO_FAST_CONSTANT, ELMO_FAST_CONSTANT, ELMO_FAST_CONSTANT, ELMO_FAST_CONSTANT)
};
#undef ELMO_FAST_CONSTANT

#define ELMO_FAST_ONE(...) +1
constexpr int isa_count = ELMO_FAST_LEVELS(ELMO_FAST_ONE, ELMO_FAST_ONE, ELMO_FAST_ONE, ELMO_FAST_ONE);
#undef ELMO_FAST_ONE

// Features of x86, and of AArch64 beyond NEON. A set of features has a bit per feature.
// clang-format off
enum class Feature : uint32_t {
  sse3, ssse3, sse4_1, sse4_2, popcnt, xsave, avx, f16c, fma, avx2, bmi1, bmi2, lzcnt, movbe,
  avx512f, avx512bw, avx512cd, avx512dq, avx512vl, avx512_bf16, amx_tile, amx_bf16,
  avx_vnni, avx512_vnni, amx_int8, sse4a, asimddp
};
// clang-format on

// A feature's name, its bit in word 0 to 3 (eax to edx) of a leaf of cpuid, and the bits of XCR0 that are set if the
// operating system saves its registers. Features of AArch64 have bits of XCR0 that no system sets.
struct FeatureBit {
  const char* name;
  unsigned leaf, subleaf;
  int word, bit;
  uint64_t saved;
};

constexpr uint64_t saves_ymm = 0x6, saves_zmm = 0xe6, saves_tiles = 0x60000;
// In the order of Feature.
constexpr FeatureBit feature_bits[] = {{"sse3", 1, 0, 2, 0, 0},
                                       {"ssse3", 1, 0, 2, 9, 0},
                                       {"sse4.1", 1, 0, 2, 19, 0},
                                       {"sse4.2", 1, 0, 2, 20, 0},
                                       {"popcnt", 1, 0, 2, 23, 0},
                                       {"xsave", 1, 0, 2, 26, 0},
                                       {"avx", 1, 0, 2, 28, saves_ymm},
                                       {"f16c", 1, 0, 2, 29, saves_ymm},
                                       {"fma", 1, 0, 2, 12, saves_ymm},
                                       {"avx2", 7, 0, 1, 5, saves_ymm},
                                       {"bmi1", 7, 0, 1, 3, 0},
                                       {"bmi2", 7, 0, 1, 8, 0},
                                       {"lzcnt", 0x80000001, 0, 2, 5, 0},
                                       {"movbe", 1, 0, 2, 22, 0},
                                       {"avx512f", 7, 0, 1, 16, saves_zmm},
                                       {"avx512bw", 7, 0, 1, 30, saves_zmm},
                                       {"avx512cd", 7, 0, 1, 28, saves_zmm},
                                       {"avx512dq", 7, 0, 1, 17, saves_zmm},
                                       {"avx512vl", 7, 0, 1, 31, saves_zmm},
                                       {"avx512_bf16", 7, 1, 0, 5, saves_zmm},
                                       {"amx_tile", 7, 0, 3, 24, saves_tiles},
                                       {"amx_bf16", 7, 0, 3, 22, saves_tiles},
                                       {"avx_vnni", 7, 1, 0, 4, saves_ymm},
                                       {"avx512_vnni", 7, 0, 2, 11, saves_zmm},
                                       {"amx_int8", 7, 0, 3, 25, saves_tiles},
                                       {"sse4a", 0x80000001, 0, 2, 6, 0},
                                       {"asimddp", 0, 0, 0, 0, ~uint64_t{0}}};
constexpr int feature_count = sizeof feature_bits / sizeof *feature_bits;

constexpr uint32_t bit(Feature feature) { return 1u << static_cast<uint32_t>(feature); }

// Internal linkage: it differs between translation units.
namespace {

// The features that this translation unit's flags let the compiler use. An engine stores this set and detection checks
// it, so that flags and check cannot differ.
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
#if defined(__AMX_TILE__) || defined(__AMXTILE__)  // the second by clang 14
  set |= bit(Feature::amx_tile);
#endif
#if defined(__AMX_BF16__) || defined(__AMXBF16__)
  set |= bit(Feature::amx_bf16);
#endif
#ifdef __AVXVNNI__
  set |= bit(Feature::avx_vnni);
#endif
#ifdef __AVX512VNNI__
  set |= bit(Feature::avx512_vnni);
#endif
#if defined(__AMX_INT8__) || defined(__AMXINT8__)
  set |= bit(Feature::amx_int8);
#endif
#ifdef __SSE4A__
  set |= bit(Feature::sse4a);
#endif
#ifdef __ARM_FEATURE_DOTPROD
  set |= bit(Feature::asimddp);
#endif
  return set;
}

}  // namespace

// Features that this processor has and whose registers the operating system saves.
uint32_t cpu_feature_set();

// Whether this process may use AMX tile data. Linux requires a request, which the first call sends.
bool amx_permitted();

// `feature` is the number of a Feature.
const char* feature_name(int feature);
const char* isa_name(Isa isa);

// The level with this name. Throws std::invalid_argument if there is none.
Isa isa_named(const std::string& name);

}  // namespace elmo_fast
