// The engine of an instruction set. CMakeLists.txt compiles this file once per instruction set, with its flags:
// ELMO_FAST_ENGINE is the name of the constant below, ELMO_FAST_VEC the vector type of an fp32 engine, ELMO_FAST_DOTS
// that of an engine for 8-bit products, ELMO_FAST_BF16 the products of a bf16 engine; ELMO_FAST_TILES makes an AMX
// engine; ELMO_FAST_HEADER is the header that defines them.
#include ELMO_FAST_HEADER

#include "char_cnn/backward.h"
#include "gemm/bf16_weights.h"
#include "gemm/int8.h"
#include "isa.h"
#include "linear/forward.h"
#include "lstm/weight_gradients.h"
#ifdef ELMO_FAST_TILES
#include "gemm/amx.h"
#endif

namespace elmo_fast::cpu {
namespace {

template <class Gemm>
constexpr Engine make_engine() {
  return {lstm_engine<Gemm>(), linear_engine<Gemm>()};
}

constexpr Engines make_engines() {
  Engines engines = {};
#if defined(ELMO_FAST_TILES)
  engines[Precision::high] = make_engine<AmxGemm<2>>();
  engines[Precision::medium] = make_engine<AmxGemm<1>>();
  engines[Precision::low] = make_engine<AmxInt8Gemm>();
#elif defined(ELMO_FAST_BF16)
  engines[Precision::medium] = make_engine<ELMO_FAST_BF16>();
#elif defined(ELMO_FAST_DOTS)
  engines[Precision::low] = make_engine<Int8Gemm<ELMO_FAST_DOTS>>();
#else
  engines[Precision::highest] = make_engine<Fp32Gemm<ELMO_FAST_VEC>>();
  engines[Precision::medium] = make_engine<Bf16WeightsGemm<ELMO_FAST_VEC>>();
  engines[Precision::low] = make_engine<Int8Gemm<ELMO_FAST_VEC>>();
  engines.training = lstm_training_engine<ELMO_FAST_VEC>();
  engines.char_cnn = char_cnn_engine<ELMO_FAST_VEC>();
#endif
  engines.features = compiled_features();
  return engines;
}

}  // namespace

extern const Engines ELMO_FAST_ENGINE;
constexpr Engines ELMO_FAST_ENGINE = make_engines();

}  // namespace elmo_fast::cpu
