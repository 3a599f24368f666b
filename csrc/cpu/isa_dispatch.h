// The instruction set of this machine and process, and its engines.
#pragma once

#include "engine.h"

namespace elmo_fast {
namespace cpu {

enum class Isa : int32_t { generic = 0, avx2 = 1, avx512 = 2, amx = 3, amx_emulated = 4 };

// What the machine has, capped by ELMO_FAST_CPU_ISA, which is read anew each time. amx-emulated is never found, only
// asked for: AVX-512 code that computes what AMX would, for tests. Throws std::invalid_argument on an unknown name.
Isa current_isa();

const char* isa_name(Isa isa);

// The instruction set that runs `precision`: fp32 has no use for AMX. False when there is none.
bool find_isa(Precision precision, Isa* isa);

const Fp32Engine& fp32_engine(Isa isa);
const LstmEngine& lstm_engine(Precision precision, Isa isa);

}  // namespace cpu
}  // namespace elmo_fast
