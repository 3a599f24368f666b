// Largest error of sigmoid and tanh over every `stride`-th float (default 1: all 2^32), in units in the last place and
// relative to what is at least 2^-126, and the special values. Prints one line per function; exits with 1 above `limit`
// ulp (default 2). `precision` is 0, 1 or 2 for highest, high or medium.
//   activation_error [stride] [limit] [precision]
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <vector>

#include "../../csrc/projected_lstm.h"

namespace {

constexpr int64_t batch = 1 << 16;

double sigmoid_exact(double x) { return x < 0 ? std::exp(x) / (1 + std::exp(x)) : 1 / (1 + std::exp(-x)); }
double tanh_exact(double x) { return std::tanh(x); }

// Distance between neighbouring floats at |y|, denormals included.
double ulp(double y) {
  const int exponent = y == 0 ? -126 : std::ilogb(y);
  return std::ldexp(1.0, (exponent < -126 ? -126 : exponent) - 23);
}

double error_in_ulp(float got, double expected) {
  if (std::isnan(expected)) return std::isnan(got) ? 0 : INFINITY;
  const double error = std::fabs(got - expected) / ulp(expected);
  return std::isnan(error) ? INFINITY : error;
}

using Activation = void (*)(const float*, float*, int64_t, elmo_fast::Precision);

struct Worst {
  double ulp = 0, relative = 0;
  float at = 0;
};

Worst scan(Activation fast, elmo_fast::Precision precision, double (*exact)(double), uint64_t stride) {
  Worst worst;
  std::vector<float> x(batch), y(batch);
  for (uint64_t begin = 0; begin < (uint64_t{1} << 32); begin += stride * batch) {
    for (int64_t k = 0; k < batch; ++k) {
      const uint32_t pattern = static_cast<uint32_t>(begin + stride * static_cast<uint64_t>(k));
      std::memcpy(&x[size_t(k)], &pattern, 4);
    }
    fast(x.data(), y.data(), batch, precision);
    for (size_t k = 0; k < size_t(batch); ++k) {
      const double expected = exact(x[k]), error = error_in_ulp(y[k], expected);
      if (error > worst.ulp) worst.ulp = error, worst.at = x[k];
      if (std::fabs(expected) >= 0x1p-126)
        worst.relative = std::fmax(worst.relative, std::fabs(y[k] - expected) / std::fabs(expected));
    }
  }
  return worst;
}

bool report(const char* name, elmo_fast::Precision precision, Worst worst, double limit) {
  std::printf("%s %s: %.3f ulp at %a, relative %.3g\n", elmo_fast::lstm_isa(precision).c_str(), name, worst.ulp,
              double(worst.at), worst.relative);
  return worst.ulp <= limit;
}

bool specials(elmo_fast::Precision precision) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const float x[5] = {inf, -inf, nan, 0.0f, -0.0f};
  float s[5], t[5];
  elmo_fast::sigmoid_forward(x, s, 5, precision);
  elmo_fast::tanh_forward(x, t, 5, precision);
  return s[0] == 1 && s[1] == 0 && std::isnan(s[2]) && s[3] == 0.5f && s[4] == 0.5f && t[0] == 1 && t[1] == -1 &&
         std::isnan(t[2]) && t[3] == 0 && !std::signbit(t[3]) && t[4] == 0 && std::signbit(t[4]);
}

}  // namespace

int main(int argc, char** argv) {
  const uint64_t stride = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1;
  const double limit = argc > 2 ? std::strtod(argv[2], nullptr) : 2.0;
  const auto precision = static_cast<elmo_fast::Precision>(argc > 3 ? std::atoi(argv[3]) : 0);
  bool good = specials(precision);
  good &= report("sigmoid", precision, scan(elmo_fast::sigmoid_forward, precision, sigmoid_exact, stride), limit);
  good &= report("tanh", precision, scan(elmo_fast::tanh_forward, precision, tanh_exact, stride), limit);
  return good ? 0 : 1;
}
