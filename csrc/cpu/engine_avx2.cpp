#include "make_engine.h"
#include "vec/avx2.h"

namespace elmo_fast::cpu {

const Fp32Engine& avx2_engine() {
  static const Fp32Engine engine = make_fp32_engine<Avx2Vec>();
  return engine;
}

}  // namespace elmo_fast::cpu
