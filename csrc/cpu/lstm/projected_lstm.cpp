// The entry points of projected_lstm.h: check arguments, make a schedule, split the work between threads.
#include "../../projected_lstm.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "../engine.h"
#include "../packed.h"

namespace elmo_fast {
namespace {

using namespace cpu;

const LstmTrainingEngine& training_engine() { return fp32_engine().training; }

Label label_for(const char* op, Precision precision, const LstmShape& s) {
  return Label(op, precision, s.input, s.dim, s.projection);
}

Label gradients_label(const LstmShape& s) { return label_for("lstm gradients", Precision::highest, s); }

Label saved_label(const LstmShape& s, int64_t packed_rows) {
  return Label("a training forward", Precision::highest, packed_rows, s.dim, s.projection);
}

void check_shape(const LstmShape& s) {
  require(s.input > 0 && s.dim > 0 && s.projection > 0 && s.input <= INT32_MAX && s.dim <= INT32_MAX / 4 &&
              s.projection <= INT32_MAX,
          "shape: expected positive input, dim and projection");
}

void check_trainable(const LstmCall& call) {
  check_shape(call.shape);
  require(!call.inputs_at && !call.outputs_at, "inputs_at, outputs_at: expected null for a call with gradients");
}

void check_batch_sizes(const LstmCall& call) {
  int64_t total = 0, last = call.slots;
  for (int64_t t = 0; t < call.steps; ++t) {
    if (call.batch_sizes[t] < 0 || call.batch_sizes[t] > last)
      throw std::invalid_argument("batch_sizes: expected a non-increasing count within slots, got " +
                                  std::to_string(call.batch_sizes[t]) + " after " + std::to_string(last));
    last = call.batch_sizes[t];
    total += last;
  }
  if (total != call.packed_rows)
    throw std::invalid_argument("batch_sizes: expected a sum of " + std::to_string(call.packed_rows) + ", got " +
                                std::to_string(total));
}

void check_addresses(const LstmCall& call) {
  require(!call.add_input || (call.outputs_at && call.shape.input == call.shape.projection),
          "add_input: expected false, or outputs_at and as many columns of x as of h");
  const auto end = call.inputs_at + 2 * call.packed_rows;
  require(std::find(call.inputs_at, end, nullptr) == end, "inputs_at: expected no null");
}

// Checks everything except the outputs.
void check_inputs(const LstmCall& call) {
  require(call.steps >= 0 && call.packed_rows >= 0 && call.input_rows >= 0 && call.output_rows >= 0 && call.slots >= 0,
          "steps, packed_rows, input_rows, output_rows, slots: expected no negative number");
  check_threads(call.threads);
  require(call.chunk_rows >= 0, "chunk_rows: expected 0 or more");
  require(call.cell_clip > 0 && call.proj_clip > 0, "cell_clip, proj_clip: expected more than 0");
  require(call.input_rows <= INT32_MAX && call.output_rows <= INT32_MAX && call.packed_rows <= INT32_MAX,
          "input_rows, output_rows, packed_rows: expected less than 2^31");
  require(call.steps == 0 || call.batch_sizes != nullptr, "batch_sizes: expected a pointer");
  check_batch_sizes(call);
  if (call.packed_rows == 0) return;
  require(call.h && call.c, "h, c: expected pointers");
  if (call.inputs_at) return check_addresses(call);
  require(call.rows && call.inputs && !call.add_input, "rows, inputs, inputs_at: expected pointers to the inputs");
  check_range(call.rows, 2 * call.packed_rows, 0, call.input_rows, "rows");
}

void check_call(const LstmCall& call, Precision precision) {
  check_shape(call.shape);
  check_packed(call.packed, call.packed_size, 2 * engine_for(precision).lstm.packed_size(call.shape),
               label_for("lstm", precision, call.shape));
  check_inputs(call);
  if (call.packed_rows == 0) return;
  if (call.outputs_at) return;
  require(call.out_rows && call.output, "out_rows, output: expected pointers");
  check_range(call.out_rows, 2 * call.packed_rows, -1, call.output_rows, "out_rows");
}

// Packs the label, then both directions with the engine's `pack`.
template <class Engine>
void pack_both(const Engine& engine, const Label& label, const LstmShape& shape, const float* const weights[2],
               const float* const biases[2], const float* const projections[2], void* packed, size_t packed_size) {
  const size_t of_direction = engine.packed_size(shape);
  begin_packed(packed, packed_size, 2 * of_direction, label);
  for (int d = 0; d < 2; ++d) {
    const bool projected = shape.dim != shape.projection;
    require(weights[d] && (!biases || biases[d]) && projected == (projections[d] != nullptr),
            "weights: expected W and B, and W_P exactly when dim and projection differ");
    char* to = static_cast<char*>(packed) + sizeof label + size_t(d) * of_direction;
    engine.pack(shape, {weights[d], biases ? biases[d] : nullptr, projections[d]}, to);
  }
}

// Most unique rows of an input GEMM: those of seven steps of 64 rows, or of two steps of 256.
int64_t default_chunk_rows(int64_t slots) { return slots > 224 ? 512 : 448; }

struct DirectionSchedule {
  std::vector<int32_t> unique_rows;   // rows of `inputs`, chunk by chunk, in order of first use
  std::vector<int32_t> unique_index;  // [S] index among the unique rows of its chunk
  std::vector<Chunk> chunks;
  int64_t max_unique = 0;

  // `rows` [S], or null if every packed row has a separate input. A step that would give a chunk more than `limit`
  // unique rows begins a new chunk.
  DirectionSchedule(const LstmCall& call, const int32_t* rows, const std::vector<int64_t>& row_begin, int64_t limit)
      : unique_index(size_t(call.packed_rows)), chunks{Chunk{}},
        seen_in_(size_t(call.inputs_at ? call.packed_rows : call.input_rows), -1), index_of_(seen_in_.size()) {
    for (int64_t step = 0; step < int64_t(row_begin.size()); ++step) {
      const int64_t begin = row_begin[size_t(step)], end = begin + call.batch_sizes[step];
      const size_t before = unique_rows.size();
      if (add_rows(rows, begin, end) > limit && step > chunks.back().step_begin) {
        unique_rows.resize(before);
        chunks.back().unique_count = int64_t(before) - chunks.back().unique_begin;
        chunks.push_back({step, step, int64_t(before), 0});
        add_rows(rows, begin, end);
      }
      chunks.back().step_end = step + 1;
      max_unique = std::max(max_unique, chunks.back().unique_count);
    }
  }

 private:
  // Adds packed rows to the last chunk. Returns the chunk's number of unique rows.
  int64_t add_rows(const int32_t* rows, int64_t begin, int64_t end) {
    Chunk& chunk = chunks.back();
    for (int64_t k = begin; k < end; ++k) {
      const auto row = size_t(rows ? rows[k] : k);
      if (seen_in_[row] != int64_t(chunks.size())) {
        seen_in_[row] = int64_t(chunks.size());
        index_of_[row] = static_cast<int32_t>(int64_t(unique_rows.size()) - chunk.unique_begin);
        unique_rows.push_back(static_cast<int32_t>(row));
      }
      unique_index[size_t(k)] = index_of_[row];
    }
    return chunk.unique_count = int64_t(unique_rows.size()) - chunk.unique_begin;
  }

  std::vector<int64_t> seen_in_;   // [input_rows] number of the chunk that last used the row
  std::vector<int32_t> index_of_;  // [input_rows] index of the row in that chunk
};

// The schedule of a checked call.
struct LstmSchedule {
  std::vector<int64_t> row_begin;  // [steps] first packed row, without trailing empty steps
  std::vector<DirectionSchedule> direction;

  LstmSchedule(const LstmCall& call, int64_t chunk_rows) {
    int64_t total = 0;
    for (int64_t t = 0; t < call.steps && call.batch_sizes[t] > 0; total += call.batch_sizes[t++])
      row_begin.push_back(total);
    for (int d = 0; d < 2; ++d)
      direction.emplace_back(call, call.inputs_at ? nullptr : call.rows + d * call.packed_rows, row_begin, chunk_rows);
  }
};

template <class T>
T* half(T* both, int64_t offset) {
  return both ? both + offset : nullptr;
}

// A direction, without scratch and saved memory. It points into `call` and `schedule`; `packed_size` is per direction.
LstmDirection make_direction(const LstmCall& call, const LstmSchedule& schedule, int d, size_t packed_size) {
  const int64_t p = call.shape.projection, dim = call.shape.dim;
  const DirectionSchedule& own = schedule.direction[size_t(d)];
  LstmDirection to = {};
  static_cast<LstmCall&>(to) = call;
  to.weights = static_cast<const char*>(call.packed) + sizeof(Label) + size_t(d) * packed_size;
  to.inputs += call.split_input ? d * call.shape.input : 0;
  to.input_stride = call.shape.input * (call.split_input ? 2 : 1);
  to.out_rows = half(call.out_rows, d * call.packed_rows);
  to.inputs_at = half(call.inputs_at, d * call.packed_rows);
  to.outputs_at = half(call.outputs_at, d * call.packed_rows);
  to.initial_h = half(call.initial_h, d * p);
  to.initial_c = half(call.initial_c, d * dim);
  to.output = half(call.output, d * p);
  to.h += d * p;
  to.c += d * dim;
  to.slots = call.batch_sizes[0];
  to.steps = int64_t(schedule.row_begin.size());
  to.row_begin = schedule.row_begin.data();
  to.unique_rows = own.unique_rows.data();
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

// Assigns memory to both directions. `scratch` has `size` bytes per team; `saved` begins with a label, or is null.
void give_memory(LstmDirection* directions, void* scratch, size_t size, const void* saved) {
  const size_t of_direction = training_engine().saved_size(directions->shape, directions->packed_rows);
  for (size_t d = 0; d < 2; ++d) {
    directions[d].scratch = static_cast<char*>(scratch) + (teams_of(directions->threads) == 2 ? d * size : 0);
    char* const begin = const_cast<char*>(static_cast<const char*>(saved)) + sizeof(Label) + d * of_direction;
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

// Runs a checked call with the engine's `run` or `run_saving`.
void run_forward(const LstmCall& given, const LstmEngine& engine, decltype(LstmEngine::run) run, void* saved) {
  if (given.packed_rows == 0) return;
  const LstmCall call = with_worthwhile_threads(given);
  const LstmSchedule schedule(call, call.chunk_rows > 0 ? call.chunk_rows : default_chunk_rows(call.batch_sizes[0]));
  LstmDirection directions[] = {make_direction(call, schedule, 0, engine.packed_size(call.shape)),
                                make_direction(call, schedule, 1, engine.packed_size(call.shape))};
  const int teams = teams_of(call.threads);
  const size_t scratch_size = engine.scratch_size(directions[0], call.threads / teams);
  give_memory(directions, thread_scratch(scratch_size * size_t(teams)), scratch_size, saved);
  run_directions(call, [&](int d, Team team) { run(directions[d], team); });
}

LstmBackward make_backward(const LstmBackwardCall& call, int d, const LstmDirection& forward) {
  const int64_t p = call.forward.shape.projection, dim = call.forward.shape.dim;
  LstmBackward to = {};
  static_cast<LstmDirection&>(to) = forward;
  to.grad_output = call.grad_output + d * p;
  to.grad_h = call.grad_h + d * p;
  to.grad_c = call.grad_c + d * dim;
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
  return engine_of(level_of(cpu_isa()), precision) ? isa_name(isa_for(precision)) : "";
}

size_t lstm_packed_size(const LstmShape& shape, Precision precision) {
  check_shape(shape);
  return sizeof(Label) + 2 * engine_for(precision).lstm.packed_size(shape);
}

void lstm_pack(const LstmShape& shape, Precision precision, const float* const weights[2], const float* const biases[2],
               const float* const projections[2], void* packed, size_t packed_size) {
  check_shape(shape);
  pack_both(engine_for(precision).lstm, label_for("lstm", precision, shape), shape, weights, biases, projections,
            packed, packed_size);
}

void lstm_forward(const LstmCall& call) {
  check_call(call, call.precision);
  const LstmEngine& engine = engine_for(call.precision).lstm;
  run_forward(call, engine, engine.run, nullptr);
}

size_t lstm_saved_size(const LstmShape& shape, int64_t packed_rows) {
  check_shape(shape);
  require(packed_rows >= 0, "packed_rows: expected no negative number");
  return sizeof(Label) + 2 * training_engine().saved_size(shape, packed_rows);
}

void lstm_forward_saving(const LstmCall& call, void* saved, size_t saved_size) {
  check_trainable(call);
  check_call(call, Precision::highest);
  check_buffer(saved, saved_size, lstm_saved_size(call.shape, call.packed_rows) - sizeof(Label));
  const Label label = saved_label(call.shape, call.packed_rows);
  std::memcpy(saved, &label, sizeof label);
  run_forward(call, fp32_engine().highest.lstm, training_engine().run_saving, saved);
}

size_t lstm_backward_packed_size(const LstmShape& shape) {
  check_shape(shape);
  return sizeof(Label) + 2 * training_engine().packed_size(shape);
}

void lstm_backward_pack(const LstmShape& shape, const float* const weights[2], const float* const projections[2],
                        void* packed, size_t packed_size) {
  check_shape(shape);
  pack_both(training_engine(), gradients_label(shape), shape, weights, nullptr, projections, packed, packed_size);
}

size_t lstm_backward_scratch_size(const LstmCall& given) {
  check_trainable(given);
  check_inputs(given);
  if (given.packed_rows == 0) return 0;
  const LstmCall forward = with_worthwhile_threads(given);
  const LstmSchedule schedule(forward, INT64_MAX);
  const int teams = teams_of(forward.threads);
  return size_t(teams) *
         training_engine().scratch_size(make_direction(forward, schedule, 0, 0), forward.threads / teams);
}

void lstm_backward(const LstmBackwardCall& call) {
  const LstmTrainingEngine& engine = training_engine();
  check_trainable(call.forward);
  const LstmCall forward = with_worthwhile_threads(call.forward);
  check_packed(forward.packed, forward.packed_size, 2 * engine.packed_size(forward.shape),
               gradients_label(forward.shape));
  check_inputs(forward);
  check_packed(call.saved, call.saved_size, lstm_saved_size(forward.shape, forward.packed_rows) - sizeof(Label),
               saved_label(forward.shape, forward.packed_rows));
  if (forward.packed_rows == 0) return clear_gradients(call);
  require(call.grad_output && call.grad_h && call.grad_c, "grad_output, grad_h, grad_c: expected pointers");
  const LstmSchedule schedule(forward, INT64_MAX);
  LstmDirection directions[] = {make_direction(forward, schedule, 0, engine.packed_size(forward.shape)),
                                make_direction(forward, schedule, 1, engine.packed_size(forward.shape))};
  const int teams = teams_of(forward.threads);
  const size_t scratch_size = engine.scratch_size(directions[0], forward.threads / teams);
  require(call.scratch && call.scratch_size >= scratch_size * size_t(teams),
          "scratch: expected lstm_backward_scratch_size bytes");
  give_memory(directions, call.scratch, scratch_size, call.saved);
  const LstmBackward backward[] = {make_backward(call, 0, directions[0]), make_backward(call, 1, directions[1])};
  run_directions(forward, [&](int d, Team team) { engine.run(backward[d], team); });
}

}  // namespace elmo_fast
