// What the machine allows: multiply-add rates and read bandwidth, each thread on its own, best of a few rounds.
//   c++ -O3 -std=c++17 FLAGS machine_floor.cpp -lpthread     (benchmarks/floor.py has the flags of each level)
//   ./a.out [threads] [KiB per thread]
// Prints for all threads together: fp32 GFLOP/s, GB/s read over that much memory (default 32 MiB per thread), GFLOP/s
// of bf16 products, on tiles where there are some, and of 8-bit integers with exact sums (0 where the flags or the system
// have none).
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <thread>
#include <vector>
#if defined(__AVX2__)
#include <immintrin.h>
#endif
#if defined(__AMX_BF16__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {

#if defined(__AVX512F__)
constexpr int width = 16, chains = 16;
#elif defined(__AVX2__)
constexpr int width = 8, chains = 12;
#else
constexpr int width = 4, chains = 12;
#endif
typedef float Lanes __attribute__((vector_size(4 * width)));

// CPU time of the calling thread: other programs on the machine do not count.
double seconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return double(now.tv_sec) + 1e-9 * double(now.tv_nsec);
}

volatile float sink;

void multiply_add(long rounds) {
  Lanes sum[chains], factor, term;
  for (int k = 0; k < width; ++k) factor[k] = 0.999f, term[k] = 0.001f;
  for (int c = 0; c < chains; ++c) sum[c] = term * float(c);
  for (long r = 0; r < rounds; ++r) {
#pragma GCC unroll 16
    for (int c = 0; c < chains; ++c) sum[c] = sum[c] * factor + term;
  }
  for (int c = 1; c < chains; ++c) sum[0] += sum[c];
  sink = sum[0][0];
}

Lanes load(const float* p) {
  Lanes x;
  std::memcpy(&x, p, sizeof x);
  return x;
}

void read_all(const std::vector<float>& data) {
  Lanes sum[8] = {};
  for (size_t k = 0; k + 8 * width <= data.size(); k += 8 * width)
    for (int c = 0; c < 8; ++c) sum[c] += load(&data[k + size_t(c * width)]);
  for (int c = 1; c < 8; ++c) sum[0] += sum[c];
  sink = sum[0][0];
}

#if defined(__AMX_BF16__)
// The kernel keeps tile registers only for processes that ask (feature 18, request 0x1023).
bool tiles_permitted() { return syscall(SYS_arch_prctl, 0x1023, 18) == 0; }

// Four tiles of sums, two of each operand, all 16 rows of 64 bytes; one product is 16 x 16 x 32 multiply-adds.
template <bool Bytes>
void multiply_tiles(long rounds) {
  alignas(64) unsigned char config[64] = {1};
  for (int t = 0; t < 8; ++t) config[16 + 2 * t] = 64, config[48 + t] = 16;
  asm volatile("" ::: "memory");  // some compilers declare only the first 8 bytes as read
  _tile_loadconfig(config);
  // clang-format off: these are statements, not expressions
  _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_zero(3);
  _tile_zero(4); _tile_zero(5); _tile_zero(6); _tile_zero(7);
  // clang-format on
  for (long r = 0; r < rounds; ++r) {
    if constexpr (Bytes) {
#if defined(__AMX_INT8__)
      _tile_dpbssd(0, 4, 6);
      _tile_dpbssd(1, 4, 7);
      _tile_dpbssd(2, 5, 6);
      _tile_dpbssd(3, 5, 7);
#endif
    } else {
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_release();
}
#else
bool tiles_permitted() { return false; }
template <bool Bytes>
void multiply_tiles(long) {}
#endif

// Multiply-adds of bf16 and of 8-bit integers per vector instruction, and the instructions; pairs of 16-bit integers where
// there is no dot of bytes.
#if defined(__AVX512BF16__)
constexpr int bf16_at_once = 32;
typedef __m512bh Pairs;
__m512 add_pairs(__m512 sum, Pairs a, Pairs b) { return _mm512_dpbf16_ps(sum, a, b); }
#else
constexpr int bf16_at_once = 0;
#endif
#if defined(__AVX512VNNI__)
constexpr int bytes_at_once = 64;
typedef __m512i Integers;
Integers add_bytes(Integers sum, Integers a, Integers b) { return _mm512_dpbusd_epi32(sum, a, b); }
#elif defined(__AVX512BW__)
constexpr int bytes_at_once = 32;
typedef __m512i Integers;
Integers add_bytes(Integers sum, Integers a, Integers b) { return _mm512_add_epi32(sum, _mm512_madd_epi16(a, b)); }
#elif defined(__AVXVNNI__)
constexpr int bytes_at_once = 32;
typedef __m256i Integers;
Integers add_bytes(Integers sum, Integers a, Integers b) { return _mm256_dpbusd_avx_epi32(sum, a, b); }
#elif defined(__AVX2__)
constexpr int bytes_at_once = 16;
typedef __m256i Integers;
Integers add_bytes(Integers sum, Integers a, Integers b) { return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b)); }
#else
constexpr int bytes_at_once = 0;
#endif

template <class Sum, class Operand>
void multiply(long rounds, Sum (*add)(Sum, Operand, Operand)) {
  Sum sum[chains] = {};
  Operand a = {}, b = {};
  for (long r = 0; r < rounds; ++r) {
#pragma GCC unroll 16
    for (int c = 0; c < chains; ++c) {
      sum[c] = add(sum[c], a, b);
      asm volatile("" : "+v"(sum[c]), "+v"(a), "+v"(b));  // no product is known to the compiler
    }
  }
}

void multiply_pairs([[maybe_unused]] long rounds) {
#if defined(__AVX512BF16__)
  multiply(rounds, add_pairs);
#endif
}

void multiply_bytes([[maybe_unused]] long rounds) {
#if defined(__AVX2__)
  multiply(rounds, add_bytes);
#endif
}

// The slowest thread of the best round.
double best_time(int threads, const std::function<void(int)>& work) {
  double best = 1e9;
  for (int round = 0; round < 5; ++round) {
    std::vector<double> took(size_t(threads), 0.0);
    std::vector<std::thread> all;
    for (int t = 0; t < threads; ++t)
      all.emplace_back([&, t] {
        const double begin = seconds();
        work(t);
        took[size_t(t)] = seconds() - begin;
      });
    for (std::thread& t : all) t.join();
    best = std::min(best, *std::max_element(took.begin(), took.end()));
  }
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 1;
  const long rounds = 10000000;
  const double compute = best_time(threads, [&](int) { multiply_add(rounds); });
  std::printf("%.1f\n", 2.0 * rounds * chains * width * threads / compute / 1e9);
  const size_t floats = (argc > 2 ? size_t(std::max(1L, std::atol(argv[2]))) : size_t(32) << 10) << 8;
  const int passes = int(std::max(size_t(4), (size_t(32) << 20) / floats));
  std::vector<std::vector<float>> data(size_t(threads), std::vector<float>(floats + 16, 1.0f));
  const double read = best_time(threads, [&](int t) {
    for (int k = 0; k < passes; ++k) read_all(data[size_t(t)]);
  });
  std::printf("%.1f\n", 4.0 * double(passes) * threads * double(floats) / read / 1e9);
  const long products = 4000000;
  const auto rate = [&](int at_once, void (*work)(long)) {
    const double took = at_once ? best_time(threads, [&](int) { work(rounds); }) : 1;
    return 2.0 * rounds * chains * at_once * threads / took / 1e9;
  };
  const double tiles = tiles_permitted() ? best_time(threads, [&](int) { multiply_tiles<false>(products / 4); }) : 0;
  std::printf("%.1f\n", tiles > 0 ? 2.0 * 16 * 16 * 32 * products * threads / tiles / 1e9
                                  : rate(bf16_at_once, multiply_pairs));
  double bytes = 0;
#if defined(__AMX_INT8__)
  if (tiles_permitted())
    bytes = 2.0 * 16 * 16 * 64 * products * threads /
            best_time(threads, [&](int) { multiply_tiles<true>(products / 4); }) / 1e9;
#endif
  std::printf("%.1f\n", bytes > 0 ? bytes : rate(bytes_at_once, multiply_bytes));
  return 0;
}
