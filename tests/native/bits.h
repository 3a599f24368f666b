// Random arrays, and their comparison to the bit, for the native test programs.
#pragma once

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

namespace {

using Floats = std::vector<float>;

Floats random_floats(size_t count, std::mt19937& rng, float deviation = 0.1f) {
  std::normal_distribution<float> normal(0.0f, deviation);
  Floats values(count);
  for (float& v : values) v = normal(rng);
  return values;
}

void require(bool holds, const char* what) {
  if (holds) return;
  std::printf("failed: %s\n", what);
  std::exit(1);
}

bool same(const Floats& a, const Floats& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace
