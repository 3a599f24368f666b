#include "isa_dispatch.h"

#include <cstdlib>
#include <stdexcept>
#include <string>

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace elmo_fast {
namespace cpu {
namespace {

constexpr const char* names[] = {"generic", "avx2", "avx512", "amx", "amx-emulated"};

#if defined(__x86_64__)

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

Isa find_machine_isa() {
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (avx512 && has_amx()) return Isa::amx;
  return avx512 ? Isa::avx512 : avx2 ? Isa::avx2 : Isa::generic;
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

#if defined(__x86_64__)

const Fp32Engine& fp32_engine(Isa isa) {
  if (isa > Isa::avx512) return avx512_engine();
  return isa == Isa::avx512 ? avx512_engine() : isa == Isa::avx2 ? avx2_engine() : generic_engine();
}

const LstmEngine& lstm_engine(Precision precision, Isa isa) {
  if (precision == Precision::highest) return fp32_engine(isa).lstm;
  const AmxEngine& amx = isa == Isa::amx ? amx_engine() : amx_emulated_engine();
  return precision == Precision::high ? amx.high : amx.medium;
}

#else

const Fp32Engine& fp32_engine(Isa) { return generic_engine(); }

const LstmEngine& lstm_engine(Precision, Isa isa) { return fp32_engine(isa).lstm; }

#endif

}  // namespace cpu
}  // namespace elmo_fast
