#include "tiles_amx.h"
#include "vec_avx512.h"

#include "engine.h"
#include "activations.h"
#include "gemm_tile.h"
#include "rough_activations.h"
#include "packed_product.h"
#include "lstm_layout.h"
#include "lstm_ahead.h"
#include "lstm_cells.h"
#include "lstm_loop.h"
#include "linear_loop.h"
#include "amx_product.h"

namespace elmo_fast {
namespace cpu {

const AmxEngine& amx_engine() {
  static const AmxEngine engine = engine_on<Tiles>();
  return engine;
}

}  // namespace cpu
}  // namespace elmo_fast
