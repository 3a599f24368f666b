// Part of a native module that takes a CPU without AMX for one with it, and carries out its instructions in a handler.
#include <string>

#include "../../csrc/cpu/engine.h"
#include "tile_trap.h"

// elmo_fast::cpu::cpu_isa() under the names of the linker's --wrap. In every call, as pytest has a handler of its own.
extern "C" elmo_fast::Isa __real__ZN9elmo_fast3cpu7cpu_isaEv();
extern "C" elmo_fast::Isa __wrap__ZN9elmo_fast3cpu7cpu_isaEv() {
  const char* const name = std::getenv("ELMO_FAST_CPU_ISA");
  if (!name || name != std::string("amx")) return __real__ZN9elmo_fast3cpu7cpu_isaEv();
  tile_trap::install();
  return elmo_fast::Isa::amx;
}

namespace {

struct AtExit {
  ~AtExit() {
    tile_trap::require(tile_trap::in_use == 0, "a thread has not released its tiles");
    tile_trap::require(tile_trap::loads > 0 && tile_trap::stores > 0 && tile_trap::products > 0, "none was trapped");
  }
} at_exit;

}  // namespace
