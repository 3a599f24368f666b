// Which engine an instruction set and a precision name.
#pragma once

#include "cpu_features.h"
#include "engine.h"

namespace elmo_fast {
namespace cpu {

// The instruction set that runs `precision`: fp32 has no use for AMX. False when there is none.
bool find_isa(Precision precision, Isa* isa);

// The same, or std::invalid_argument when there is none or no such precision.
Isa isa_for(Precision precision);

const Fp32Engine& fp32_engine(Isa isa);
const LstmEngine& lstm_engine(Precision precision, Isa isa);
const LinearEngine& linear_engine(Precision precision, Isa isa);
const ActivationEngine& activation_engine(Precision precision, Isa isa);

}  // namespace cpu
}  // namespace elmo_fast
