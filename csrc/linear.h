// A linear layer with an epilogue, in the register tiles and the fixed order of sums of the LSTM (projected_lstm.h).
// csrc/cpu implements it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/packed.h"

namespace elmo_fast {

// highest: fp32 with IEEE denormals. high: operands split into two bf16 values, three products. medium: bf16.
// high and medium need AMX, accumulate in fp32 and flush denormals inside products. low: 8-bit operands with a scale
// for each row and column of a product and 512 of k, and exact 32-bit sums; 512 values of a row that are all below
// 2^-100 become zero. An infinite input stays infinite in every product with a weight that the precision does not round
// to zero.
enum class Precision : int32_t { highest = 0, high = 1, medium = 2, low = 3 };
struct PrecisionName {
  Precision precision;
  const char* name;
};
constexpr PrecisionName precision_names[] = {
    {Precision::highest, "highest"}, {Precision::high, "high"}, {Precision::medium, "medium"}, {Precision::low, "low"}};
constexpr int precision_count = sizeof precision_names / sizeof *precision_names;

// y = epilogue(x W + b). highway: y = g * relu(x Wt + bt) + (1 - g) * x with g = sigmoid(x Wc + bc), K == M.
enum class Epilogue : int32_t { none = 0, highway = 1 };

struct LinearShape {
  int64_t input;   // K
  int64_t output;  // M
  Epilogue epilogue;
  Precision precision = Precision::highest;  // of the products; the epilogue is fp32
};

namespace cpu {
struct LinearEngine;
}
using PackedLinear = cpu::Packed<cpu::LinearEngine>;

// weight [K, M], bias [M]. highway: weight, bias hold Wc, bc and transform_weight [K, K],
// transform_bias [K] hold Wt, bt; null otherwise.
PackedLinear linear_pack(const LinearShape& shape, const float* weight, const float* bias,
                         const float* transform_weight, const float* transform_bias);

struct LinearCall {
  LinearShape shape;
  const char* packed;  // set by linear_forward
  const float* x;      // [rows, K]
  int64_t rows;
  float* y;            // [rows, M]; must not alias x
  int threads;
};

// `weights` of the same shape. The bits of an output row depend neither on the other rows of the call nor on the thread
// count.
void linear_forward(const PackedLinear& weights, LinearCall call);

}  // namespace elmo_fast
