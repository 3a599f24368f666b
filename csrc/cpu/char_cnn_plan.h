// What the entry points of char_cnn.h hand to an instruction set's loops.
#pragma once

#include "../char_cnn.h"
#include "engine.h"

namespace elmo_fast {
namespace cpu {

struct CharCnnPlan {
  CharCnnCall call;
  int64_t widest;
  const int32_t* lengths;  // [tokens] one past the last character that is no padding
  const int64_t* places;   // [tokens + 1] characters before each token's, of those that windows see
  float* values;           // forward
  uint32_t* picks;         // forward writes, backward reads
  const float* grad_values;
  float* grad_table;
  float* scratch;
};

}  // namespace cpu
}  // namespace elmo_fast
