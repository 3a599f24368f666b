#include "isa_dispatch.h"

#include <cstdlib>
#include <stdexcept>
#include <string>

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

// The build defines ELMO_FAST_HAS_AVX2, _AVX512, _AMX for the instruction sets that it compiled.

namespace elmo_fast {
namespace cpu {
namespace {

constexpr const char* names[] = {"generic", "avx2", "avx512", "amx", "amx-emulated"};

#if defined(ELMO_FAST_HAS_AMX)

// AMX tile data is enabled per process on request; without it the first tile operation faults.
bool request_amx() {
#if defined(__linux__)
  constexpr long arch_req_xcomp_perm = 0x1023, xfeature_tiledata = 18;
  return syscall(SYS_arch_prctl, arch_req_xcomp_perm, xfeature_tiledata) == 0;
#else
  return false;
#endif
}

bool has_amx() {
#if defined(__linux__)
  unsigned a, b, c, d;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  const bool tile = d >> 24 & 1, bf16 = d >> 22 & 1;
  return tile && bf16 && request_amx();
#else
  return false;
#endif
}

#else

bool has_amx() { return false; }

#endif

#if defined(ELMO_FAST_HAS_AVX512)

bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

#else

bool has_avx512() { return false; }

#endif

#if defined(ELMO_FAST_HAS_AVX2)

Isa find_machine_isa() {
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return Isa::generic;
  if (!has_avx512()) return Isa::avx2;
  return has_amx() ? Isa::amx : Isa::avx512;
}

#else

Isa find_machine_isa() { return Isa::generic; }

#endif

Isa machine_isa() {
  static const Isa found = find_machine_isa();
  return found;
}

Isa isa_named(const std::string& name) {
  for (int32_t k = 0; k < 5; ++k)
    if (name == names[k]) return static_cast<Isa>(k);
  throw std::invalid_argument("ELMO_FAST_CPU_ISA: expected generic, avx2, avx512, amx or amx-emulated, got " + name);
}

}  // namespace

Isa current_isa() {
  const char* asked = std::getenv("ELMO_FAST_CPU_ISA");
  if (asked == nullptr || *asked == '\0') return machine_isa();
  const Isa cap = isa_named(asked);
  if (cap == Isa::amx_emulated) return machine_isa() < Isa::avx512 ? machine_isa() : Isa::amx_emulated;
  return cap < machine_isa() ? cap : machine_isa();
}

const char* isa_name(Isa isa) { return names[static_cast<int32_t>(isa)]; }

bool find_isa(Precision precision, Isa* isa) {
  *isa = current_isa();
  if (precision != Precision::highest) return *isa >= Isa::amx;
  if (*isa > Isa::avx512) *isa = Isa::avx512;
  return true;
}

const Fp32Engine& fp32_engine(Isa isa) {
#if defined(ELMO_FAST_HAS_AVX512)
  if (isa >= Isa::avx512) return avx512_engine();
#endif
#if defined(ELMO_FAST_HAS_AVX2)
  if (isa >= Isa::avx2) return avx2_engine();
#endif
  (void)isa;
  return generic_engine();
}

const LstmEngine& lstm_engine(Precision precision, Isa isa) {
#if defined(ELMO_FAST_HAS_AMX)
  if (isa == Isa::amx && precision != Precision::highest)
    return precision == Precision::high ? amx_engine().high : amx_engine().medium;
#endif
#if defined(ELMO_FAST_HAS_AVX512)
  if (isa == Isa::amx_emulated && precision != Precision::highest)
    return precision == Precision::high ? amx_emulated_engine().high : amx_emulated_engine().medium;
#endif
  (void)precision;
  return fp32_engine(isa).lstm;
}

}  // namespace cpu
}  // namespace elmo_fast
