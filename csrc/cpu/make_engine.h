// The function tables of an engine, on a Gemm class or a vector type.
#pragma once

#include "char_cnn/backward.h"
#include "gemm/fp32.h"
#include "gemm/linear.h"
#include "lstm/weight_gradients.h"

namespace elmo_fast::cpu {

template <class Gemm>
Engine make_engine() {
  return {lstm_engine<Gemm>(), linear_engine<Gemm>(),
          activation_engine<typename Gemm::Vec, typename Gemm::Activations>()};
}

template <class Vec>
Fp32Engine make_fp32_engine() {
  return {make_engine<Fp32Gemm<Vec>>(), lstm_training_engine<Vec>(), char_cnn_engine<Vec>()};
}

}  // namespace elmo_fast::cpu
