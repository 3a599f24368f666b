#include "isa.h"

#include <string_view>

#if defined(__x86_64__) || defined(__i386__)
#define ELMO_FAST_X86
#include <cpuid.h>
#endif
#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif
#if defined(ELMO_FAST_X86) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace elmo_fast {
namespace {

// The set of a feature of the table.
constexpr uint32_t set_of(const char* name) {
  uint32_t set = 0;
  for (int k = 0; k < feature_count; ++k)
    if (std::string_view(feature_table[k].name) == name) set |= 1u << k;
  return set;
}

#ifdef ELMO_FAST_X86
// 0 if the leaf does not exist.
uint32_t cpuid(unsigned leaf, unsigned subleaf, int word) {
  uint32_t words[4] = {};
  if (subleaf == 0 || cpuid(leaf, 0, 0) >= subleaf)
    __get_cpuid_count(leaf, subleaf, &words[0], &words[1], &words[2], &words[3]);
  return words[word];
}

// XCR0: which registers the operating system saves. Inline assembly, since the intrinsic needs -mxsave.
uint64_t saved_registers() {
  uint32_t low = 0, high = 0;
  if (cpuid(1, 0, 2) >> 27 & 1) __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));  // OSXSAVE
  return (uint64_t{high} << 32) | low;
}
#endif

// Whether an AArch64 has the dots of bytes.
bool has_dotprod() {
#if defined(__aarch64__) && defined(__linux__)
  return getauxval(AT_HWCAP) >> 20 & 1;  // HWCAP_ASIMDDP
#elif defined(__aarch64__) && defined(__APPLE__)
  int found = 0;
  size_t size = sizeof found;
  return sysctlbyname("hw.optional.arm.FEAT_DotProd", &found, &size, nullptr, 0) == 0 && found;
#else
  return false;
#endif
}

bool request_amx() {
#if defined(ELMO_FAST_X86) && defined(__linux__) && defined(SYS_arch_prctl)
  constexpr long request_permission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long tile_data = 18;
  return cpu_feature_set() & set_of("amx_tile") && syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
#else
  return false;
#endif
}

}  // namespace

std::string cpu_vendor() {
#ifdef ELMO_FAST_X86
  uint32_t words[4] = {};
  __get_cpuid(0, &words[eax], &words[ebx], &words[ecx], &words[edx]);
  const uint32_t spelled[] = {words[ebx], words[edx], words[ecx]};
  return std::string(reinterpret_cast<const char*>(spelled), sizeof spelled);
#else
  return "";
#endif
}

uint32_t cpu_feature_set() {
  uint32_t set = 0;
#ifdef ELMO_FAST_X86
  const uint64_t saved = saved_registers();
  for (int k = 0; k < feature_count; ++k) {
    const Feature& f = feature_table[k];
    if ((saved & f.saved) == f.saved && cpuid(f.leaf, f.subleaf, f.word) >> f.bit & 1) set |= 1u << k;
  }
#endif
  if (has_dotprod()) set |= set_of("asimddp");
  return set;
}

bool amx_permitted() {
  static const bool permitted = request_amx();
  return permitted;
}

}  // namespace elmo_fast
