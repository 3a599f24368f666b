#include "isa.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
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

const char* const isa_names[] = {"generic", "avx2", "avx512", "amx", "amx-emulated"};

struct Features {
  bool sse4_2 = false, avx2 = false, fma = false, f16c = false;
  bool avx512f = false, avx512bw = false, avx512dq = false, avx512vl = false, avx512_bf16 = false;
  bool amx_tile = false, amx_bf16 = false;
};

#ifdef ELMO_FAST_X86
struct Leaf {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

// All zero when the CPU does not have the leaf.
Leaf cpuid(unsigned leaf, unsigned subleaf) {
  Leaf r;
  __get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx);
  return r;
}

bool bit(uint64_t word, int n) { return (word >> n) & 1; }

// XCR0: which registers the operating system saves. Inline assembly, as the intrinsic would need -mxsave.
uint64_t saved_registers(const Leaf& leaf1) {
  if (!bit(leaf1.ecx, 27)) return 0;  // OSXSAVE
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (uint64_t{high} << 32) | low;
}

Features detect() {
  const Leaf one = cpuid(1, 0), seven = cpuid(7, 0);
  const Leaf seven_one = seven.eax >= 1 ? cpuid(7, 1) : Leaf{};
  const uint64_t saved = saved_registers(one);
  const bool ymm = (saved & 0x6) == 0x6;            // xmm, ymm
  const bool zmm = (saved & 0xe6) == 0xe6;          // and opmask, both halves of zmm
  const bool tiles = (saved & 0x60000) == 0x60000;  // tile configuration, tile data
  Features f;
  f.sse4_2 = bit(one.ecx, 20);
  f.avx2 = ymm && bit(seven.ebx, 5);
  f.fma = ymm && bit(one.ecx, 12);
  f.f16c = ymm && bit(one.ecx, 29);
  f.avx512f = zmm && bit(seven.ebx, 16);
  f.avx512dq = zmm && bit(seven.ebx, 17);
  f.avx512bw = zmm && bit(seven.ebx, 30);
  f.avx512vl = zmm && bit(seven.ebx, 31);
  f.avx512_bf16 = zmm && bit(seven_one.eax, 5);
  f.amx_bf16 = tiles && bit(seven.edx, 22);
  f.amx_tile = tiles && bit(seven.edx, 24);
  return f;
}
#else
Features detect() { return {}; }
#endif

const Features& features() {
  static const Features found = detect();
  return found;
}

bool request_amx() {
#if defined(ELMO_FAST_X86) && defined(__linux__) && defined(SYS_arch_prctl)
  constexpr long request_permission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long tile_data = 18;
  return features().amx_tile && syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
#else
  return false;
#endif
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
  const Features& f = features();
  return {{"sse4.2", f.sse4_2},           {"avx2", f.avx2},         {"fma", f.fma},           {"f16c", f.f16c},
          {"avx512f", f.avx512f},         {"avx512bw", f.avx512bw}, {"avx512dq", f.avx512dq}, {"avx512vl", f.avx512vl},
          {"avx512_bf16", f.avx512_bf16}, {"amx_tile", f.amx_tile}, {"amx_bf16", f.amx_bf16}};
}

bool amx_permitted() {
  static const bool permitted = request_amx();
  return permitted;
}

Isa cpu_isa() {
  const Isa highest = cap();
  [[maybe_unused]] const Features& f = features();
  Isa isa = Isa::generic;
#ifdef ELMO_FAST_HAS_AVX2
  if (f.avx2 && f.fma) isa = Isa::avx2;
#endif
#ifdef ELMO_FAST_HAS_AVX512
  if (isa == Isa::avx2 && f.avx512f && f.avx512bw && f.avx512dq && f.avx512vl) isa = Isa::avx512;
#endif
#ifdef ELMO_FAST_HAS_AMX
  // avx512_bf16 because those files are compiled with it. Permission last: a lower cap then never asks for it.
  if (isa == Isa::avx512 && highest == Isa::amx && f.avx512_bf16 && f.amx_tile && f.amx_bf16 && amx_permitted())
    isa = Isa::amx;
#endif
  return highest == Isa::amx_emulated && isa == Isa::avx512 ? highest : std::min(isa, highest);
}

const char* isa_name(Isa isa) { return isa_names[static_cast<int>(isa)]; }

}  // namespace elmo_fast
