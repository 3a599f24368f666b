// What this CPU, its operating system and this build can run together.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace elmo_fast {

// In ascending order: each level includes the ones before it. amx_emulated is AVX-512 code that computes what AMX
// would, bit for bit; tests ask for it, detection never finds it.
enum class Isa : int32_t { generic = 0, avx2 = 1, avx512 = 2, amx = 3, amx_emulated = 4 };

// Name and presence of each feature; present means that the operating system keeps its registers too.
std::vector<std::pair<std::string, bool>> cpu_features();

// Whether this process may use AMX tile data. Linux requires a request, which the first call makes.
bool amx_permitted();

// The best usable level, at most the one that the environment variable ELMO_FAST_CPU_ISA names.
// Throws std::invalid_argument when it names none.
Isa cpu_isa();

const char* isa_name(Isa isa);

}  // namespace elmo_fast
