#include "isa_dispatch.h"

#include <stdexcept>

namespace elmo_fast {
namespace cpu {
namespace {

// The engine of `high` and `medium`, or null where only fp32 was compiled.
const Bf16Engine* bf16_engine([[maybe_unused]] Precision precision, [[maybe_unused]] Isa isa) {
  [[maybe_unused]] const bool high = precision == Precision::high;
#ifdef ELMO_FAST_HAS_AMX
  if (isa == Isa::amx) return high ? &amx_engine().high : &amx_engine().medium;
#endif
#ifdef ELMO_FAST_HAS_AVX512
  return high ? &amx_emulated_engine().high : &amx_emulated_engine().medium;
#endif
  return nullptr;
}

}  // namespace

bool find_isa(Precision precision, Isa* isa) {
  *isa = cpu_isa();
  if (precision != Precision::highest) return *isa >= Isa::amx;
  if (*isa > Isa::avx512) *isa = Isa::avx512;
  return true;
}

Isa isa_for(Precision precision) {
  const auto number = static_cast<int32_t>(precision);
  if (number < 0 || number > 2) throw std::invalid_argument("precision: expected 0, 1 or 2");
  Isa isa;
  if (!find_isa(precision, &isa))
    throw std::invalid_argument("precision: high and medium need AMX, which is not available here");
  return isa;
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
  if (precision == Precision::highest) return fp32_engine(isa).lstm;
  return bf16_engine(precision, isa)->lstm;
}

const LinearEngine& linear_engine(Precision precision, Isa isa) {
  if (precision == Precision::highest) return fp32_engine(isa).linear;
  return bf16_engine(precision, isa)->linear;
}

const ActivationEngine& activation_engine(Precision precision, Isa isa) {
  if (precision == Precision::highest) return fp32_engine(isa).activation;
  return bf16_engine(precision, isa)->activation;
}

}  // namespace cpu
}  // namespace elmo_fast
