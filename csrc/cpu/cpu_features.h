// What this CPU, its operating system and this build can run together.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace elmo_fast {

// In ascending order: each level includes the ones before it.
enum class Isa { generic, avx2, avx512, amx };

// Name and presence of each feature; present means that the operating system keeps its registers too.
std::vector<std::pair<std::string, bool>> cpu_features();

// Whether this process may use AMX tile data. Linux wants to be asked: the first call asks, later ones know.
bool amx_permitted();

// The best usable level, at most the one that the environment variable ELMO_FAST_CPU_ISA names.
// Throws std::invalid_argument when it names none.
Isa cpu_isa();

const char* isa_name(Isa isa);

}  // namespace elmo_fast
