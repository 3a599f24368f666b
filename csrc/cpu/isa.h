// Instruction sets: the levels of the engine, the features of a processor, and the features that a translation unit is
// compiled with. A new level needs a constant of Isa, a row of engine.cpp, a vector type in vec/ and a line of
// CMakeLists.txt.
#pragma once

#include <cstdint>
#include <string>

namespace elmo_fast {

// The levels in ascending order. AArch64 has generic and the levels of NEON, x86 the others.
enum class Isa : int32_t { generic, neon, neon_dotprod, avx2, avx_vnni, avx512, avx512_vnni, avx512_bf16, amx };
constexpr int isa_count = static_cast<int>(Isa::amx) + 1;

// Internal linkage: what is compiled differs between translation units.
namespace {

// Whether a macro of the compiler is defined, which is then as 1.
#define ELMO_FAST_EXPANSION(expansion) #expansion
#define ELMO_FAST_DEFINED(macro) (ELMO_FAST_EXPANSION(macro)[0] == '1')

enum Register { eax, ebx, ecx, edx };

// A feature of x86, or of AArch64 beyond NEON.
struct Feature {
  const char* name;
  bool is_compiled;        // whether the flags of this translation unit let the compiler use it
  unsigned leaf, subleaf;  // of cpuid
  Register word;
  int bit;
  uint64_t saved;  // the bits of XCR0 that are set if the operating system saves its registers
};

constexpr uint64_t saves_ymm = 0x6, saves_zmm = 0xe6, saves_tiles = 0x60000, is_not_x86 = ~uint64_t{0};
constexpr Feature feature_table[] = {
    {"sse3", ELMO_FAST_DEFINED(__SSE3__), 1, 0, ecx, 0, 0},
    {"ssse3", ELMO_FAST_DEFINED(__SSSE3__), 1, 0, ecx, 9, 0},
    {"sse4.1", ELMO_FAST_DEFINED(__SSE4_1__), 1, 0, ecx, 19, 0},
    {"sse4.2", ELMO_FAST_DEFINED(__SSE4_2__), 1, 0, ecx, 20, 0},
    {"popcnt", ELMO_FAST_DEFINED(__POPCNT__), 1, 0, ecx, 23, 0},
    {"xsave", ELMO_FAST_DEFINED(__XSAVE__), 1, 0, ecx, 26, 0},
    {"avx", ELMO_FAST_DEFINED(__AVX__), 1, 0, ecx, 28, saves_ymm},
    {"f16c", ELMO_FAST_DEFINED(__F16C__), 1, 0, ecx, 29, saves_ymm},
    {"fma", ELMO_FAST_DEFINED(__FMA__), 1, 0, ecx, 12, saves_ymm},
    {"avx2", ELMO_FAST_DEFINED(__AVX2__), 7, 0, ebx, 5, saves_ymm},
    {"bmi1", ELMO_FAST_DEFINED(__BMI__), 7, 0, ebx, 3, 0},
    {"bmi2", ELMO_FAST_DEFINED(__BMI2__), 7, 0, ebx, 8, 0},
    {"lzcnt", ELMO_FAST_DEFINED(__LZCNT__), 0x80000001, 0, ecx, 5, 0},
    {"movbe", ELMO_FAST_DEFINED(__MOVBE__), 1, 0, ecx, 22, 0},
    {"avx512f", ELMO_FAST_DEFINED(__AVX512F__), 7, 0, ebx, 16, saves_zmm},
    {"avx512bw", ELMO_FAST_DEFINED(__AVX512BW__), 7, 0, ebx, 30, saves_zmm},
    {"avx512cd", ELMO_FAST_DEFINED(__AVX512CD__), 7, 0, ebx, 28, saves_zmm},
    {"avx512dq", ELMO_FAST_DEFINED(__AVX512DQ__), 7, 0, ebx, 17, saves_zmm},
    {"avx512vl", ELMO_FAST_DEFINED(__AVX512VL__), 7, 0, ebx, 31, saves_zmm},
    {"avx512_bf16", ELMO_FAST_DEFINED(__AVX512BF16__), 7, 1, eax, 5, saves_zmm},
    // Each of tiles has a second name in clang 14.
    {"amx_tile", ELMO_FAST_DEFINED(__AMX_TILE__) || ELMO_FAST_DEFINED(__AMXTILE__), 7, 0, edx, 24, saves_tiles},
    {"amx_bf16", ELMO_FAST_DEFINED(__AMX_BF16__) || ELMO_FAST_DEFINED(__AMXBF16__), 7, 0, edx, 22, saves_tiles},
    {"amx_int8", ELMO_FAST_DEFINED(__AMX_INT8__) || ELMO_FAST_DEFINED(__AMXINT8__), 7, 0, edx, 25, saves_tiles},
    {"avx_vnni", ELMO_FAST_DEFINED(__AVXVNNI__), 7, 1, eax, 4, saves_ymm},
    {"avx512_vnni", ELMO_FAST_DEFINED(__AVX512VNNI__), 7, 0, ecx, 11, saves_zmm},
    {"asimddp", ELMO_FAST_DEFINED(__ARM_FEATURE_DOTPROD), 0, 0, eax, 0, is_not_x86}};
constexpr int feature_count = sizeof feature_table / sizeof *feature_table;

#undef ELMO_FAST_DEFINED
#undef ELMO_FAST_EXPANSION

// The features that this translation unit's flags let the compiler use, a bit for each row of the table. An engine
// stores this set and detection checks it, so that flags and check cannot differ.
constexpr uint32_t compiled_features() {
  uint32_t set = 0;
  for (int k = 0; k < feature_count; ++k) set |= feature_table[k].is_compiled ? 1u << k : 0;
  return set;
}

}  // namespace

// What selects the level.
struct Processor {
  std::string vendor;  // as cpuid spells it; empty without cpuid
  uint32_t features;   // those that it has and whose registers the operating system saves
  bool permits_amx;    // whether this process may use AMX tile data
};

// "AuthenticAMD", "GenuineIntel" and so on; empty without cpuid.
std::string cpu_vendor();

// Features that this processor has and whose registers the operating system saves.
uint32_t cpu_feature_set();

// Whether this process may use AMX tile data. Linux requires a request, which the first call sends.
bool amx_permitted();

}  // namespace elmo_fast
