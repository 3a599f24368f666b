#include "make_engine.h"
#include "vec/avx512.h"

namespace elmo_fast::cpu {

const Fp32Engine& avx512_engine() {
  static const Fp32Engine engine = make_fp32_engine<Avx512Vec>();
  return engine;
}

}  // namespace elmo_fast::cpu
