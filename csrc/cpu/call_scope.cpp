#include "call_scope.h"

#include <cstdlib>
#include <memory>
#include <new>

#if defined(__x86_64__) || defined(__i386__)
#include <xmmintrin.h>
#endif

namespace elmo_fast {
namespace cpu {
namespace {

constexpr size_t page = 4096;

struct Free {
  void operator()(char* p) const { std::free(p); }
};

struct Scratch {
  std::unique_ptr<char, Free> data;
  size_t size = 0;
};

}  // namespace

char* thread_scratch(size_t bytes) {
  thread_local Scratch scratch;
  if (scratch.size < bytes) {
    scratch.data.reset();
    scratch.size = 0;
    const size_t size = (bytes + page - 1) / page * page;
    scratch.data.reset(static_cast<char*>(std::aligned_alloc(page, size)));
    if (!scratch.data) throw std::bad_alloc();
    scratch.size = size;
  }
  return scratch.data.get();
}

#if defined(__x86_64__) || defined(__i386__)

IeeeScope::IeeeScope() : saved_(_mm_getcsr()) { _mm_setcsr(0x1f80); }
IeeeScope::~IeeeScope() { _mm_setcsr(static_cast<unsigned>(saved_)); }

#elif defined(__aarch64__)

IeeeScope::IeeeScope() {
  asm volatile("mrs %0, fpcr" : "=r"(saved_));
  asm volatile("msr fpcr, %0" ::"r"(uint64_t{0}));
}
IeeeScope::~IeeeScope() { asm volatile("msr fpcr, %0" ::"r"(saved_)); }

#else

IeeeScope::IeeeScope() : saved_(0) {}
IeeeScope::~IeeeScope() {}

#endif

}  // namespace cpu
}  // namespace elmo_fast
