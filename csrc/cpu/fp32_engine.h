// The fp32 engine of the including translation unit's instruction set. Include after its vec_*.h.
#pragma once

#include "engine.h"
#include "activations.h"
#include "gemm_tile.h"
#include "packed_product.h"
#include "lstm_layout.h"
#include "lstm_ahead.h"
#include "lstm_cells.h"
#include "lstm_loop.h"
#include "backward_layout.h"
#include "paneled_product.h"
#include "lstm_backward_loop.h"
#include "lstm_weight_gradients.h"
#include "linear_loop.h"
#include "char_cnn_plan.h"
#include "char_cnn_loop.h"
#include "char_cnn_gradients.h"

namespace {

Fp32Engine fp32_engine() {
  return {lstm_engine<Fp32Product>(),
          {lstm_kept, lstm_saved_row_bytes, lstm_run_direction<Fp32Product, true>, backward_packed_bytes,
           backward_pack_direction, backward_scratch_bytes, lstm_run_backward},
          linear_engine<Fp32Product>(),
          {char_cnn_forward_floats, char_cnn_backward_floats, char_cnn_run_forward, char_cnn_run_backward},
          activation_engine<ExactActivations>()};
}

}  // namespace
