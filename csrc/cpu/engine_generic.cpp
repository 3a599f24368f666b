#include "make_engine.h"
#include "vec/generic.h"

namespace elmo_fast::cpu {

const Fp32Engine& generic_engine() {
  static const Fp32Engine engine = make_fp32_engine<GenericVec>();
  return engine;
}

}  // namespace elmo_fast::cpu
