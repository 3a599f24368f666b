#include "vec_generic.h"

#include "fp32_engine.h"

namespace elmo_fast {
namespace cpu {

const Fp32Engine& generic_engine() {
  static const Fp32Engine engine = fp32_engine();
  return engine;
}

}  // namespace cpu
}  // namespace elmo_fast
