// What the cases of check_engines.cpp share: random operands, aligned memory, the comparison with the generic engine,
// which the tests in Python compare with float64, and its line.
#pragma once

#include <cmath>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "cpu/engine.h"

using Floats = std::vector<float>;

struct Random {
  std::minstd_rand generator;
  explicit Random(unsigned seed) : generator(seed + 1) {}

  // In [-scale, scale).
  Floats floats(int64_t count, double scale = 1) {
    Floats values(static_cast<size_t>(count));
    for (float& x : values) x = static_cast<float>(scale * (2.0 * generator() / std::minstd_rand::max() - 1));
    return values;
  }
  int64_t below(int64_t limit) { return static_cast<int64_t>(generator() % static_cast<uint64_t>(limit)); }
};

// Bytes that begin on a cache line, filled with what no result may keep.
class Buffer {
 public:
  explicit Buffer(size_t size) : size_(size), bytes_(size + 64, '\xff') {
    const auto address = reinterpret_cast<uintptr_t>(bytes_.data());
    data_ = bytes_.data() + (64 - address % 64) % 64;
  }
  char* data() { return data_; }
  size_t size() const { return size_; }

 private:
  size_t size_;
  std::vector<char> bytes_;
  char* data_;
};

// Norm of the difference over that of what is expected and a twentieth more for each entry, as sums may cancel. NaN
// where there is one.
inline double relative_error(const Floats& found, const Floats& expected) {
  double difference = 0, size = 0;
  for (size_t k = 0; k < expected.size(); ++k) {
    difference += std::pow(double{found[k]} - double{expected[k]}, 2);
    size += std::pow(double{expected[k]}, 2);
  }
  return expected.empty() ? 0 : std::sqrt(difference) / (std::sqrt(size) + 0.05 * std::sqrt(double(expected.size())));
}

// A level and a precision, what they may be off, and the lines of their cases.
struct Engine {
  std::string isa;
  elmo_fast::Precision precision;
  int cases = 0, failures = 0;
  uint64_t digest = 14695981039346656037u;  // of all results

  const char* precision_name() const {
    for (const auto& [each, name] : elmo_fast::precision_names)
      if (each == precision) return name;
    return "";
  }
  bool has_dots() const { return isa == "avx512-bf16"; }
  bool trains() const { return precision == elmo_fast::Precision::highest; }
  // Relative Frobenius errors (elmo_fast/ops/precision.py).
  double limit() const {
    if (precision == elmo_fast::Precision::medium && isa.rfind("amx", 0) && !has_dots()) return 5e-3;  // fp32 products
    return trains() ? 2e-6 : precision == elmo_fast::Precision::high ? 4e-5 : 3e-2;
  }
  double gradient_limit() const { return 2e-5; }

  void report(const std::string& name, bool good, double error, double limit) {
    std::printf("%-12s %-7s %-46s %8.1e of %.0e %s\n", isa.c_str(),
                precision_name(), name.c_str(), error, limit, good ? "ok" : "OFF");
    ++cases;
    failures += !good;
  }
  void expect(const std::string& name, bool holds) { report(name, holds, holds ? 0 : 1, 0); }
  // The largest error of a case's results against those of the engine that runs first: generic in `highest`.
  double error_of(const std::string& name, const std::vector<Floats>& results) {
    static std::map<std::string, std::vector<Floats>> of_generic;
    const std::vector<Floats>& expected = of_generic.try_emplace(name, results).first->second;
    double largest = 0;
    for (size_t k = 0; k < results.size(); ++k) {
      const auto* bytes = reinterpret_cast<const unsigned char*>(results[k].data());
      for (size_t b = 0; b < results[k].size() * sizeof(float); ++b) digest = (digest ^ bytes[b]) * 1099511628211u;
      const double error = relative_error(results[k], expected[k]);
      if (!(error <= largest)) largest = error;
    }
    return largest;
  }
};

__attribute__((format(printf, 1, 2))) inline std::string text(const char* format, ...) {
  char line[128];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  return line;
}

inline bool same_bits(const Floats& a, const Floats& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}
