// The entry points of char_cnn.h: check, plan, partition the work between threads.
#include "../../char_cnn.h"

#include <algorithm>
#include <vector>

#include "../engine.h"
#include "../packed.h"

namespace elmo_fast {
namespace {

using namespace cpu;

void check_call(const CharCnnCall& call) {
  for (int64_t b = 0; b < call.bank_count; ++b)
    require(call.banks[b].width <= call.characters, "ids: expected as many characters as the widest filter");
  check_range(call.ids, call.tokens * call.characters, 0, call.table_rows, "ids");
}

// Arrays that a plan points to.
struct Tokens {
  std::vector<int32_t> lengths;
  std::vector<int64_t> character_begin{0};

  explicit Tokens(const CharCnnCall& call) {
    int64_t widest = 0;
    for (int64_t b = 0; b < call.bank_count; ++b) widest = std::max(widest, call.banks[b].width);
    for (int64_t token = 0; token < call.tokens; ++token) {
      const int32_t* ids = call.ids + token * call.characters;
      int64_t length = call.characters;
      while (length > 0 && ids[length - 1] == call.padding) --length;
      lengths.push_back(static_cast<int32_t>(length));
      character_begin.push_back(character_begin.back() + std::min(call.characters, length + widest));
    }
  }
};

// An estimate, from 32 multiply-adds per nanosecond.
double nanoseconds_of(const CharCnnCall& call, const Tokens& tokens) {
  double weights = 0;
  for (int64_t b = 0; b < call.bank_count; ++b)
    weights += double(call.banks[b].width) * double(call.dim) * double(call.banks[b].filters);
  return weights * double(tokens.character_begin.back()) / 32;
}

void run(CharCnnPlan plan, const CharCnnPass& pass) {
  const Tokens tokens(plan);
  const double work = nanoseconds_of(plan, tokens);
  plan.threads = threads_for(work, plan.threads);
  plan.lengths = tokens.lengths.data();
  plan.character_begin = tokens.character_begin.data();
  plan.scratch = reinterpret_cast<float*>(thread_scratch(size_t(pass.scratch_floats(plan)) * sizeof(float)));
  for (int stage = 0; stage < pass.stages; ++stage)
    run_claimed(plan.threads, work, [&](int part) { pass.run(plan, stage, part); });
}

}  // namespace

void char_cnn_forward(const CharCnnCall& call, float* values, uint32_t* picks) {
  check_call(call);
  CharCnnPlan plan = {};
  static_cast<CharCnnCall&>(plan) = call;
  plan.values = values;
  plan.picks = picks;
  run(plan, fp32_engines().char_cnn.forward);
}

void char_cnn_backward(const CharCnnCall& call, const float* grad_values, const uint32_t* picks, float* grad_table) {
  check_call(call);
  CharCnnPlan plan = {};
  static_cast<CharCnnCall&>(plan) = call;
  plan.grad_values = grad_values;
  plan.picks = const_cast<uint32_t*>(picks);
  plan.grad_table = grad_table;
  run(plan, fp32_engines().char_cnn.backward);
}

}  // namespace elmo_fast
