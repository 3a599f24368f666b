// Part of a check_engines that takes its processor for one with all features. Where there is no AMX, its instructions are
// carried out in a handler.
#include <cstdint>
#include <cstdio>

#include "../tile_trap.h"

// elmo_fast::cpu_feature_set() and elmo_fast::amx_permitted() under the names of the linker's --wrap.
extern "C" uint32_t __wrap__ZN9elmo_fast15cpu_feature_setEv() { return ~0u; }
extern "C" bool __wrap__ZN9elmo_fast13amx_permittedEv() {
  static const bool trapped = [] {
    tile_trap::install();
    return true;
  }();
  return trapped;
}

namespace {

struct AtExit {
  ~AtExit() {
    tile_trap::require(tile_trap::in_use == 0, "a thread has not released its tiles");
    std::fprintf(stderr, "carried out: %ld dots\n", tile_trap::products.load());
  }
} at_exit;

}  // namespace
