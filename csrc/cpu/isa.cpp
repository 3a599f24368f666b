#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <iterator>
#include <stdexcept>

#include "engine.h"

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

const char* const isa_names[] = {"generic", "avx2", "avx512", "amx", "amx-emulated"};

// A feature's bit in word 0 to 3 (eax to edx) of a leaf of cpuid, and what XCR0 says where its registers are saved.
struct Feature {
  const char* name;
  unsigned leaf, subleaf;
  int word, bit;
  uint64_t saved;
};

constexpr uint64_t ymm = 0x6, zmm = 0xe6, tiles = 0x60000;
constexpr Feature features[] = {
    {"sse4.2", 1, 0, 2, 20, 0},       {"avx2", 7, 0, 1, 5, ymm},       {"fma", 1, 0, 2, 12, ymm},
    {"f16c", 1, 0, 2, 29, ymm},       {"avx512f", 7, 0, 1, 16, zmm},   {"avx512bw", 7, 0, 1, 30, zmm},
    {"avx512dq", 7, 0, 1, 17, zmm},   {"avx512vl", 7, 0, 1, 31, zmm},  {"avx512_bf16", 7, 1, 0, 5, zmm},
    {"amx_tile", 7, 0, 3, 24, tiles}, {"amx_bf16", 7, 0, 3, 22, tiles}};

// 0 where there is no such leaf.
uint32_t cpuid(unsigned leaf, unsigned subleaf, int word) {
  uint32_t words[4] = {};
#ifdef ELMO_FAST_X86
  if (subleaf == 0 || cpuid(leaf, 0, 0) >= subleaf)
    __get_cpuid_count(leaf, subleaf, &words[0], &words[1], &words[2], &words[3]);
#endif
  return words[word];
}

// XCR0: which registers the operating system saves. Inline assembly, as the intrinsic would need -mxsave.
uint64_t saved_registers() {
  uint32_t low = 0, high = 0;
#ifdef ELMO_FAST_X86
  if (cpuid(1, 0, 2) >> 27 & 1) __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));  // OSXSAVE
#endif
  return (uint64_t{high} << 32) | low;
}

bool has(std::initializer_list<const char*> names) {
  const std::vector<std::pair<std::string, bool>> found = cpu_features();
  return std::all_of(names.begin(), names.end(), [&](const std::string& name) {
    return std::find(found.begin(), found.end(), std::make_pair(name, true)) != found.end();
  });
}

bool request_amx() {
#if defined(ELMO_FAST_X86) && defined(__linux__) && defined(SYS_arch_prctl)
  constexpr long request_permission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long tile_data = 18;
  return has({"amx_tile"}) && syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
#else
  return false;
#endif
}

Isa detect_vectors() {
  Isa isa = Isa::generic;
#ifdef ELMO_FAST_HAS_AVX2
  if (has({"avx2", "fma"})) isa = Isa::avx2;
#endif
#ifdef ELMO_FAST_HAS_AVX512
  if (isa == Isa::avx2 && has({"avx512f", "avx512bw", "avx512dq", "avx512vl"})) isa = Isa::avx512;
#endif
  return isa;
}

Isa cap() {
  const char* value = std::getenv("ELMO_FAST_CPU_ISA");
  if (!value || !*value) return Isa::amx;
  const auto name = std::find(std::begin(isa_names), std::end(isa_names), std::string(value));
  if (name == std::end(isa_names))
    throw std::invalid_argument("ELMO_FAST_CPU_ISA: expected one of generic, avx2, avx512, amx, amx-emulated, got '" +
                                std::string(value) + "'");
  return static_cast<Isa>(name - std::begin(isa_names));
}

}  // namespace

std::vector<std::pair<std::string, bool>> cpu_features() {
  std::vector<std::pair<std::string, bool>> found;
  const uint64_t saved = saved_registers();
  for (const Feature& f : features)
    found.emplace_back(f.name, (saved & f.saved) == f.saved && cpuid(f.leaf, f.subleaf, f.word) >> f.bit & 1);
  return found;
}

bool amx_permitted() {
  static const bool permitted = request_amx();
  return permitted;
}

Isa cpu_isa() {
  const Isa highest = cap();
  static const Isa vectors = detect_vectors();
  Isa isa = vectors;
#ifdef ELMO_FAST_HAS_AMX
  // avx512_bf16 because the engine is compiled with it. Permission last: a lower cap then never asks for it.
  static const bool has_amx = has({"avx512_bf16", "amx_tile", "amx_bf16"});
  if (isa == Isa::avx512 && highest == Isa::amx && has_amx && amx_permitted()) isa = Isa::amx;
#endif
  return highest == Isa::amx_emulated && isa == Isa::avx512 ? highest : std::min(isa, highest);
}

const char* isa_name(Isa isa) { return isa_names[static_cast<int>(isa)]; }

}  // namespace elmo_fast
