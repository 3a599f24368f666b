// The fp32 engine of the including translation unit's instruction set. Include after its vec_*.h.
#pragma once

#include "engine.h"
#include "gemm_tile.h"
#include "packed_product.h"
#include "lstm_layout.h"
#include "activations.h"
#include "lstm_loop.h"
#include "linear_loop.h"

namespace {

Fp32Engine fp32_engine() {
  return {lstm_engine<Fp32Product>(),
          {linear_packed_bytes, linear_pack_all, linear_scratch_bytes, linear_run_share},
          map_floats<sigmoid>,
          map_floats<tanh>};
}

}  // namespace
