// Part of a check_engines, or of a native module, that takes its processor for one with all features. Where AMX may not be
// used, its instructions are carried out in a handler.
#include <cstdint>
#include <cstdio>

#include "tile_trap.h"

// elmo_fast::cpu_feature_set() and elmo_fast::amx_permitted() under the names of the linker's --wrap.
extern "C" bool __real__ZN9elmo_fast13amx_permittedEv();
extern "C" uint32_t __wrap__ZN9elmo_fast15cpu_feature_setEv() { return ~0u; }
extern "C" bool __wrap__ZN9elmo_fast13amx_permittedEv() {
  // In every call, as pytest has a handler of its own.
  if (!__real__ZN9elmo_fast13amx_permittedEv()) tile_trap::install();
  return true;
}

namespace {

struct AtExit {
  ~AtExit() {
    tile_trap::require(tile_trap::in_use == 0, "a thread has not released its tiles");
    std::fprintf(stderr, "carried out: %ld dots\n", tile_trap::products.load());
  }
} at_exit;

}  // namespace
