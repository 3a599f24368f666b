// What the machine allows: fp32 multiply-add rate and read bandwidth, each thread on its own, best of a few rounds.
//   c++ -O3 -std=c++17 -mavx512f machine_floor.cpp -lpthread && ./a.out [threads]     (or -mavx2 -mfma, or nothing)
// Prints: GFLOP/s of all threads, then GB/s of all threads over 32 MB per thread.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <thread>
#include <vector>

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
  std::vector<std::vector<float>> data(size_t(threads), std::vector<float>((8 << 20) + 16, 1.0f));
  const double read = best_time(threads, [&](int t) {
    for (int k = 0; k < 4; ++k) read_all(data[size_t(t)]);
  });
  std::printf("%.1f\n", 4.0 * threads * (32 << 20) / read / 1e9);
  return 0;
}
