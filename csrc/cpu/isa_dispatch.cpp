#include "isa_dispatch.h"

namespace elmo_fast {
namespace cpu {

bool find_isa(Precision precision, Isa* isa) {
  *isa = cpu_isa();
  if (precision != Precision::highest) return *isa >= Isa::amx;
  if (*isa > Isa::avx512) *isa = Isa::avx512;
  return true;
}

const Fp32Engine& fp32_engine([[maybe_unused]] Isa isa) {
#ifdef ELMO_FAST_HAS_AVX512
  if (isa >= Isa::avx512) return avx512_engine();
#endif
#ifdef ELMO_FAST_HAS_AVX2
  if (isa >= Isa::avx2) return avx2_engine();
#endif
  return generic_engine();
}

const LstmEngine& lstm_engine(Precision precision, Isa isa) {
#ifdef ELMO_FAST_HAS_AMX
  if (precision != Precision::highest && isa == Isa::amx) {
    return precision == Precision::high ? amx_engine().high : amx_engine().medium;
  }
#endif
#ifdef ELMO_FAST_HAS_AVX512
  if (precision != Precision::highest) {
    return precision == Precision::high ? amx_emulated_engine().high : amx_emulated_engine().medium;
  }
#endif
  return fp32_engine(isa).lstm;
}

}  // namespace cpu
}  // namespace elmo_fast
