#include "isa.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>

#if defined(__x86_64__) || defined(__i386__)
#define ELMO_FAST_X86
#include <cpuid.h>
#endif
#if defined(ELMO_FAST_X86) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace elmo_fast {
namespace {

const char* const isa_names[] = {"generic", "neon", "avx2", "avx512", "amx", "amx-emulated"};
static_assert(std::size(isa_names) == isa_count);

// A feature's bit in word 0 to 3 (eax to edx) of a leaf of cpuid, and what XCR0 says where its registers are saved.
struct FeatureBit {
  const char* name;
  unsigned leaf, subleaf;
  int word, bit;
  uint64_t saved;
};

constexpr uint64_t ymm = 0x6, zmm = 0xe6, tiles = 0x60000;
constexpr FeatureBit feature_bits[] = {
    {"sse3", 1, 0, 2, 0, 0},           {"ssse3", 1, 0, 2, 9, 0},         {"sse4.1", 1, 0, 2, 19, 0},
    {"sse4.2", 1, 0, 2, 20, 0},        {"popcnt", 1, 0, 2, 23, 0},       {"xsave", 1, 0, 2, 26, 0},
    {"avx", 1, 0, 2, 28, ymm},         {"f16c", 1, 0, 2, 29, ymm},       {"fma", 1, 0, 2, 12, ymm},
    {"avx2", 7, 0, 1, 5, ymm},         {"bmi1", 7, 0, 1, 3, 0},          {"bmi2", 7, 0, 1, 8, 0},
    {"lzcnt", 0x80000001, 0, 2, 5, 0}, {"movbe", 1, 0, 2, 22, 0},        {"avx512f", 7, 0, 1, 16, zmm},
    {"avx512bw", 7, 0, 1, 30, zmm},    {"avx512cd", 7, 0, 1, 28, zmm},   {"avx512dq", 7, 0, 1, 17, zmm},
    {"avx512vl", 7, 0, 1, 31, zmm},    {"avx512_bf16", 7, 1, 0, 5, zmm}, {"amx_tile", 7, 0, 3, 24, tiles},
    {"amx_bf16", 7, 0, 3, 22, tiles}};
static_assert(std::size(feature_bits) == feature_count);

#ifdef ELMO_FAST_X86
// 0 where there is no such leaf.
uint32_t cpuid(unsigned leaf, unsigned subleaf, int word) {
  uint32_t words[4] = {};
  if (subleaf == 0 || cpuid(leaf, 0, 0) >= subleaf)
    __get_cpuid_count(leaf, subleaf, &words[0], &words[1], &words[2], &words[3]);
  return words[word];
}

// XCR0: which registers the operating system saves. Inline assembly, as the intrinsic would need -mxsave.
uint64_t saved_registers() {
  uint32_t low = 0, high = 0;
  if (cpuid(1, 0, 2) >> 27 & 1) __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));  // OSXSAVE
  return (uint64_t{high} << 32) | low;
}
#endif

bool request_amx() {
#if defined(ELMO_FAST_X86) && defined(__linux__) && defined(SYS_arch_prctl)
  constexpr long request_permission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long tile_data = 18;
  return cpu_feature_set() & bit(Feature::amx_tile) && syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
#else
  return false;
#endif
}

}  // namespace

uint32_t cpu_feature_set() {
  uint32_t set = 0;
#ifdef ELMO_FAST_X86
  const uint64_t saved = saved_registers();
  for (int k = 0; k < feature_count; ++k) {
    const FeatureBit& f = feature_bits[k];
    if ((saved & f.saved) == f.saved && cpuid(f.leaf, f.subleaf, f.word) >> f.bit & 1) set |= 1u << k;
  }
#endif
  return set;
}

bool amx_permitted() {
  static const bool permitted = request_amx();
  return permitted;
}

const char* feature_name(int feature) { return feature_bits[feature].name; }

const char* isa_name(Isa isa) { return isa_names[static_cast<int>(isa)]; }

Isa isa_named(const std::string& name) {
  const auto found = std::find(std::begin(isa_names), std::end(isa_names), name);
  if (found != std::end(isa_names)) return static_cast<Isa>(found - std::begin(isa_names));
  std::string expected;
  for (const char* each : isa_names) expected += (expected.empty() ? "" : ", ") + std::string(each);
  throw std::invalid_argument("ELMO_FAST_CPU_ISA: expected one of " + expected + ", got '" + name + "'");
}

}  // namespace elmo_fast
