// The engine of one instruction set. CMakeLists.txt compiles this file once for each, with its flags: ELMO_FAST_ENGINE
// is the constant below, ELMO_FAST_VEC the vector type of an fp32 engine, ELMO_FAST_TILES the tiles of a bf16 one, and
// ELMO_FAST_HEADER the header of either.
#include ELMO_FAST_HEADER

#include "char_cnn/backward.h"
#include "gemm/linear.h"
#include "isa.h"
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

}  // namespace

#ifdef ELMO_FAST_TILES
constexpr AmxEngine ELMO_FAST_ENGINE = {make_engine<AmxGemm<ELMO_FAST_TILES, 2>>(),
                                        make_engine<AmxGemm<ELMO_FAST_TILES, 1>>(), compiled_features()};
#else
constexpr Fp32Engine ELMO_FAST_ENGINE = {make_engine<Fp32Gemm<ELMO_FAST_VEC>>(), lstm_training_engine<ELMO_FAST_VEC>(),
                                         char_cnn_engine<ELMO_FAST_VEC>(), compiled_features()};
#endif

}  // namespace elmo_fast::cpu
