// The entry points of projected_lstm.h: make a schedule, split the work between threads.
#include "../../projected_lstm.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "../packed.h"
#include "schedule.h"

namespace elmo_fast {
namespace {

using namespace cpu;

const LstmTrainingEngine& training_engine() { return fp32_engines().training; }

void check_shape(const LstmShape& s) {
  require(s.input > 0 && s.dim > 0 && s.projection > 0 && s.input <= INT32_MAX && s.dim <= INT32_MAX / 4 &&
              s.projection <= INT32_MAX,
          "shape: expected positive input, dim and projection");
}

template <class T>
T* half(T* both, int64_t offset) {
  return both ? both + offset : nullptr;
}

// Other counts would lead out of bounds.
void check_batch_sizes(const LstmCall& call) {
  int64_t total = 0, last = call.slots;
  for (int64_t t = 0; t < call.steps; total += call.batch_sizes[t++]) {
    require(call.batch_sizes[t] >= 0 && call.batch_sizes[t] <= last,
            "batch_sizes: expected a non-increasing count within slots");
    last = call.batch_sizes[t];
  }
  require(total == call.packed_rows, "batch_sizes: expected a sum of packed_rows");
}

using Inputs = std::array<DirectionInputs, 2>;

Inputs inputs_of(const LstmCall& call, const LstmRows& from) {
  Inputs inputs = {};
  if (call.packed_rows == 0) return inputs;
  if (from.rows) check_range(from.rows, 2 * call.packed_rows, 0, from.input_rows, "rows");
  for (size_t d = 0; d < 2; ++d) {
    inputs[d].count = from.input_rows;
    inputs[d].first = from.rows ? from.inputs : half(from.inputs, d * call.shape.input);
    inputs[d].stride = from.rows ? call.shape.input : 2 * call.shape.input;
    inputs[d].rows = half(from.rows, d * call.packed_rows);
  }
  return inputs;
}

Inputs inputs_of(const LstmCall& call, const LstmAddresses& from) {
  Inputs inputs = {};
  if (call.packed_rows == 0) return inputs;
  for (size_t d = 0; d < 2; ++d) {
    inputs[d].count = call.packed_rows;
    inputs[d].addresses = half(from.inputs, d * call.packed_rows);
    inputs[d].are_added = from.add_input;
  }
  return inputs;
}

// Most unique inputs of an input GEMM: those of seven steps of 64 rows, or of two steps of 256.
int64_t most_unique(int64_t slots) { return slots > 224 ? 512 : 448; }

// A direction, without scratch and saved memory. It points into the other arguments; `weights` are its own.
LstmDirection make_direction(const LstmCall& call, const Inputs& inputs, const LstmSchedule& schedule, int d,
                             const char* weights) {
  const int64_t p = call.shape.projection, dim = call.shape.dim;
  const DirectionSchedule& own = schedule.direction[size_t(d)];
  LstmDirection to = {};
  static_cast<LstmCall&>(to) = call;
  to.weights = weights;
  to.initial_h = half(call.initial_h, d * p);
  to.initial_c = half(call.initial_c, d * dim);
  to.outputs = half(call.outputs, d * call.packed_rows);
  to.added = inputs[size_t(d)].are_added ? inputs[size_t(d)].addresses : nullptr;
  to.h += d * p;
  to.c += d * dim;
  to.slots = call.batch_sizes[0];
  to.steps = int64_t(schedule.row_begin.size());
  to.row_begin = schedule.row_begin.data();
  to.unique_inputs = own.unique_inputs.data();
  to.unique_index = own.unique_index.data();
  to.chunks = own.chunks.data();
  to.chunk_count = int64_t(own.chunks.size());
  to.max_unique = std::max(schedule.direction[0].max_unique, schedule.direction[1].max_unique);
  return to;
}

// An estimate for both directions: 32 multiply-adds or 16 bytes of weights per nanosecond.
double nanoseconds_of(const LstmCall& call) {
  const LstmShape& s = call.shape;
  const double projection = s.dim != s.projection ? double(s.dim) * double(s.projection) : 0;
  const double step = 4 * double(s.dim) * double(s.projection) + projection;  // weights used in a step
  const double input = 4 * double(s.dim) * double(s.input);
  const double rows = double(call.packed_rows);
  return 2 * (step * std::max(rows / 32, double(call.steps) / 4) + input * std::max(rows / 32, 0.25));
}

// Limits the number of threads to what pays off. Threads that share a direction meet at barriers in every step, and all
// wait while the system does not schedule one of them. So if a thread's share is small, two threads run one direction
// each.
LstmCall with_worthwhile_threads(LstmCall call) {
  const double work = nanoseconds_of(call);
  call.threads = threads_for(work, call.threads);
  if (call.threads > 2 && work / call.threads < 10 * least_share()) call.threads = 2;
  return call;
}

// An even number of threads forms two teams, one per direction; an odd number forms one team for both in turn.
int teams_of(int threads) { return threads % 2 == 0 ? 2 : 1; }

// Assigns memory to both directions. `scratch` has `size` bytes per team; `saved` may be null.
void give_memory(LstmDirection* directions, void* scratch, size_t size, const void* saved) {
  const size_t of_direction = training_engine().saved_size(directions->shape, directions->packed_rows);
  for (size_t d = 0; d < 2; ++d) {
    directions[d].scratch = static_cast<char*>(scratch) + (teams_of(directions->threads) == 2 ? d * size : 0);
    char* const begin = const_cast<char*>(static_cast<const char*>(saved)) + d * of_direction;
    directions[d].saved = saved ? reinterpret_cast<float*>(begin) : nullptr;
  }
}

// Calls run(direction, team) on every thread; a single team runs the directions in turn.
template <class Run>
void run_directions(const LstmCall& call, const Run& run) {
  const int threads = call.threads, teams = teams_of(threads), team_size = threads / teams;
  Barrier barriers[] = {Barrier(team_size), Barrier(team_size)};
  const auto task = [&](int number) {
    const int team = number / team_size;
    for (int k = 0; k < 2 / teams; ++k) {
      run(team + k, Team{number % team_size, team_size, &barriers[team]});
      barriers[team].wait();
    }
  };
  if (team_size == 1) run_claimed(threads, nanoseconds_of(call), task);
  else run_together(threads, task);
}

void run_forward(const PackedLstm& weights, const LstmCall& given, const Inputs& inputs, void* saved) {
  if (given.packed_rows == 0) return;
  const LstmCall call = with_worthwhile_threads(given);
  const LstmSchedule schedule(call, inputs.data(), most_unique(call.batch_sizes[0]));
  const LstmEngine& engine = *weights.engine;
  const char* const packed = weights.memory.get();
  LstmDirection directions[] = {make_direction(call, inputs, schedule, 0, packed),
                                make_direction(call, inputs, schedule, 1, packed + engine.packed_size(call.shape))};
  const int teams = teams_of(call.threads);
  const size_t scratch_size = engine.scratch_size(directions[0], call.threads / teams);
  give_memory(directions, thread_scratch(scratch_size * size_t(teams)), scratch_size, saved);
  run_directions(call, [&](int d, Team team) { engine.run(directions[d], team); });
}

LstmBackward make_backward(const LstmBackwardCall& call, int d, const float* inputs, const LstmDirection& forward) {
  const int64_t p = call.forward.shape.projection, dim = call.forward.shape.dim;
  LstmBackward to = {};
  static_cast<LstmDirection&>(to) = forward;
  to.grad_output = call.grad_output + d * p;
  to.grad_h = call.grad_h + d * p;
  to.grad_c = call.grad_c + d * dim;
  to.inputs = inputs;
  to.grad_inputs = call.grad_inputs[d];
  to.grad_weights = call.grad_weights[d];
  to.grad_biases = call.grad_biases[d];
  to.grad_projections = call.grad_projections[d];
  to.grad_initial_h = half(call.grad_initial_h, d * p);
  to.grad_initial_c = half(call.grad_initial_c, d * dim);
  return to;
}

// Clears the gradients of a call without packed rows, except those of its state.
void clear_gradients(const LstmBackwardCall& call) {
  const LstmShape& s = call.forward.shape;
  const auto clear = [](float* to, int64_t count) {
    if (to) std::memset(to, 0, sizeof(float) * size_t(count));
  };
  clear(call.grad_initial_h, 2 * s.projection);
  clear(call.grad_initial_c, 2 * s.dim);
  for (int d = 0; d < 2; ++d) {
    clear(call.grad_weights[d], (s.input + s.projection) * 4 * s.dim);
    clear(call.grad_biases[d], 4 * s.dim);
    clear(call.grad_projections[d], s.dim * s.projection);
  }
}

}  // namespace

std::string lstm_isa(Precision precision) {
  return engine_of(level_of(cpu_isa()), precision) ? level_of(isa_for(precision)).name : "";
}

PackedLstm lstm_pack(const LstmShape& shape, Precision precision, const float* const weights[2],
                     const float* const biases[2], const float* const projections[2]) {
  check_shape(shape);
  const LstmEngine& engine = engine_for(precision).lstm;
  const size_t of_direction = engine.packed_size(shape);
  PackedLstm packed = {&engine, 2 * of_direction, packed_memory(2 * of_direction)};
  for (size_t d = 0; d < 2; ++d)
    engine.pack(shape, {weights[d], biases[d], projections[d]}, packed.memory.get() + d * of_direction);
  return packed;
}

void lstm_forward(const PackedLstm& weights, const LstmCall& call, const LstmRows& from, void* saved) {
  check_batch_sizes(call);
  run_forward(weights, call, inputs_of(call, from), saved);
}

void lstm_forward(const PackedLstm& weights, const LstmCall& call, const LstmAddresses& from) {
  check_batch_sizes(call);
  run_forward(weights, call, inputs_of(call, from), nullptr);
}

size_t lstm_saved_size(const LstmShape& shape, int64_t packed_rows) {
  check_shape(shape);
  return 2 * training_engine().saved_size(shape, packed_rows);
}

void lstm_backward(const LstmBackwardCall& call) {
  const LstmTrainingEngine& engine = training_engine();
  check_shape(call.forward.shape);
  const LstmCall forward = with_worthwhile_threads(call.forward);
  check_batch_sizes(forward);
  const Inputs inputs = inputs_of(forward, call.from);
  require(call.saved_size == lstm_saved_size(forward.shape, forward.packed_rows), "saved: expected another size");
  if (forward.packed_rows == 0) return clear_gradients(call);
  const LstmSchedule schedule(forward, inputs.data(), INT64_MAX);
  const size_t packed_size = engine.packed_size(forward.shape);
  const AlignedMemory packed = packed_memory(2 * packed_size);
  for (size_t d = 0; d < 2; ++d)
    engine.pack(forward.shape, {call.weights[d], nullptr, call.projections[d]}, packed.get() + d * packed_size);
  LstmDirection directions[] = {make_direction(forward, inputs, schedule, 0, packed.get()),
                                make_direction(forward, inputs, schedule, 1, packed.get() + packed_size)};
  const int teams = teams_of(forward.threads);
  const size_t scratch_size = engine.scratch_size(directions[0], forward.threads / teams);
  const AlignedMemory scratch = aligned_memory(scratch_size * size_t(teams), 64);  // too much to keep
  give_memory(directions, scratch.get(), scratch_size, call.saved);
  const LstmBackward backward[] = {make_backward(call, 0, inputs[0].first, directions[0]),
                                   make_backward(call, 1, inputs[1].first, directions[1])};
  run_directions(forward, [&](int d, Team team) { engine.run(backward[d], team); });
}

}  // namespace elmo_fast
