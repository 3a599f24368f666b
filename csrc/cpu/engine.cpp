#include "engine.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
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

namespace cpu {

Isa isa_for(Precision precision) {
  require(precision >= Precision::highest && precision <= Precision::medium, "precision: expected 0, 1 or 2");
  const Isa isa = cpu_isa();
  if (precision == Precision::highest) return std::min(isa, Isa::avx512);
  require(isa >= Isa::amx, "precision: high and medium need AMX, which is not available here");
  return isa;
}

const Fp32Engine& fp32_engine([[maybe_unused]] Isa isa) {
#ifdef ELMO_FAST_HAS_AVX512
  if (isa >= Isa::avx512) return avx512_engine();
#endif
#ifdef ELMO_FAST_HAS_AVX2
  if (isa >= Isa::avx2) return avx2_engine();
#endif
  return generic_engine();
}

const Engine& engine_for([[maybe_unused]] Precision precision, Isa isa) {
#ifdef ELMO_FAST_HAS_AVX512
  const AmxEngine* bf16 = &amx_emulated_engine();
#ifdef ELMO_FAST_HAS_AMX
  if (isa == Isa::amx) bf16 = &amx_engine();
#endif
  if (precision != Precision::highest) return precision == Precision::high ? bf16->high : bf16->medium;
#endif
  return fp32_engine(isa);
}

Label::Label(const char* op, Isa isa, Precision precision, int64_t first, int64_t second, int64_t third) : text{} {
  std::snprintf(text, sizeof text, "%s for %s, precision %d, sizes %lld %lld %lld", op, isa_name(isa),
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

}  // namespace cpu
}  // namespace elmo_fast
