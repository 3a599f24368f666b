// Runs the CUDA tiers' phases on the host, a thread for each block, in random order. Reads one case after the other
// from a file and writes output, h, c and the number of aborts of each to another: simulate_cuda IN OUT.
// tests/cuda_simulator.py writes the one and reads the other.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <functional>
#include <memory>

#include "../../csrc/cuda/calls.h"
#include "host_block.h"

namespace simulator {

#ifdef ELMO_FAST_FP16_ONLY  // sanitized builds: half the code
using Second = Fp16;
#else
using Second = Bf16;
#endif

struct Header {
  int64_t tier;  // 0 steps, 1 steps whose last block adds up, 2 persistent
  int64_t dim, projection, lanes, steps, step_rows, product_rows, operand;
  int64_t has_rows, has_reset, has_reset_state;
  int64_t processors, shared, cluster, nanoseconds, first_count, absent_block, seed;
  double cell_clip, proj_clip;
};

struct Case {
  Header is;
  std::vector<float> weights[2], biases[2], projections[2], products[2], h, c, reset_h, reset_c, output;
  std::vector<int32_t> live, begin, rows[2];
  std::vector<uint8_t> reset;
  std::vector<char> packed_memory, scratch_memory;
  int32_t aborts = 0;
};

template <class T>
std::vector<T> read(std::ifstream& file, int64_t count) {
  std::vector<T> values(static_cast<size_t>(count));
  file.read(reinterpret_cast<char*>(values.data()), std::streamsize(sizeof(T) * values.size()));
  if (!file) throw std::runtime_error("the case ends early");
  return values;
}

template <class T>
void write(std::ofstream& file, const std::vector<T>& values) {
  file.write(reinterpret_cast<const char*>(values.data()), std::streamsize(sizeof(T) * values.size()));
}

Case read_case(const Header& is, std::ifstream& file) {
  Case c;
  c.is = is;
  const bool projected = is.dim != is.projection;
  for (int d = 0; d < 2; ++d) {
    c.weights[d] = read<float>(file, is.projection * 4 * is.dim);
    c.biases[d] = read<float>(file, 4 * is.dim);
    c.projections[d] = read<float>(file, projected ? is.dim * is.projection : 0);
    c.products[d] = read<float>(file, is.product_rows * 4 * is.dim);
    c.rows[d] = read<int32_t>(file, is.has_rows ? is.step_rows : 0);
  }
  c.live = read<int32_t>(file, is.steps);
  c.reset = read<uint8_t>(file, is.has_reset ? is.step_rows : 0);
  c.reset_h = read<float>(file, is.has_reset_state ? 2 * is.projection : 0);
  c.reset_c = read<float>(file, is.has_reset_state ? 2 * is.dim : 0);
  c.h = read<float>(file, is.lanes * 2 * is.projection);
  c.c = read<float>(file, is.lanes * 2 * is.dim);
  c.begin.push_back(0);
  for (int32_t n : c.live) c.begin.push_back(c.begin.back() + n);
  c.output.assign(size_t(is.step_rows * 2 * is.projection), std::nanf(""));
  return c;
}

template <class T>
const T* pointer(const std::vector<T>& values) {
  return values.empty() ? nullptr : values.data();
}

char* aligned256(std::vector<char>& memory, size_t size) {
  memory.assign(size + 256, char(0xff));  // poison
  return memory.data() + (256 - reinterpret_cast<uintptr_t>(memory.data()) % 256) % 256;
}

void run_together(std::vector<std::function<void()>> blocks, std::minstd_rand& rng) {
  std::shuffle(blocks.begin(), blocks.end(), rng);
  std::vector<std::thread> running;
  for (auto& block : blocks) running.emplace_back(block);
  for (auto& thread : running) thread.join();
}

template <class O, int NT>
void launch_step(const StepCall& call, size_t shared, int tiles, std::minstd_rand& rng) {
  std::vector<std::unique_ptr<Cluster>> clusters;
  std::vector<std::function<void()>> blocks;
  std::vector<std::unique_ptr<HostBlock>> machines;
  for (int d = 0; d < 2; ++d)
    for (int tile = 0; tile < tiles; ++tile)
      for (int index = 0; index < call.blocks; ++index) {
        const int rank = index % call.cluster;
        if (rank == 0) {
          clusters.emplace_back(new Cluster);
          clusters.back()->shared.resize(size_t(call.cluster));
        }
        machines.emplace_back(new HostBlock(shared, clusters.back().get(), rank, tiles, unsigned(rng())));
        HostBlock* block = machines.back().get();
        blocks.push_back([=, &call] { run_step<O, NT, NT <= 2 ? 8 : 4>(*block, call, d, tile, index, rank); });
      }
  run_together(blocks, rng);
}

template <class O>
void run_steps(const Call& c, const Plan& plan, Sums sums, std::minstd_rand& rng) {
  StepCall call = step_call(c, plan, sums);
  const Layout& layout = call.direction[0].layout;
  std::memset(c.scratch, 0, StepScratch(layout, c.lanes, plan.blocks / plan.cluster, plan.cluster).cleared);
  for (int t = 0; t < c.steps; ++t) {
    call.now.step = t;
    call.now.live = c.live[t];
    call.now.first = t == 0;
    int nt = plan.lane_tiles;
    while (nt > 1 && nt * tile_lanes / 2 >= call.now.live) nt /= 2;
    const size_t shared = SharedLayout(layout, plan.units_per_block, plan.cluster, nt, false).size;
    const int tiles = divided_up(call.now.live, nt * tile_lanes);
    const auto launch = nt == 1 ? launch_step<O, 1> : nt == 2 ? launch_step<O, 2> : nt == 4 ? launch_step<O, 4>
                                                                                           : launch_step<O, 8>;
    launch(call, shared, tiles, rng);
    if (layout.projected() && !call.arrived) {
      std::vector<std::function<void()>> blocks;
      for (int at = 0; at < 6; ++at)
        blocks.push_back([&call, at] {
          HostBlock block(threads * sizeof(float), nullptr, 0, 1, unsigned(at));
          run_sums<O>(block, call, at % 2, at / 2, 3);
        });
      run_together(blocks, rng);
    }
    call.now.begin += call.now.live;
  }
}

template <class O>
void run_persistent_direction(const Call& c, const Plan& plan, const Patience& patience, int d, std::minstd_rand& rng) {
  const PersistentCall call = persistent_call(c, plan, patience, d);
  const Layout& layout = call.direction.layout;
  std::memset(c.scratch, 0, PersistentScratch(layout, c.lanes, plan.blocks).cleared);
  call.barrier->count = patience.first_count;
  std::vector<std::function<void()>> blocks;
  for (int index = 0; index < plan.blocks; ++index) {
    const unsigned seed = unsigned(rng());
    blocks.push_back([&, index, seed] {
      HostBlock block(size_t(plan.shared), nullptr, 0, 1, seed);
      if (plan.lane_tiles == 1) run_persistent<O, 1>(block, call, index);
      else if (plan.lane_tiles == 2) run_persistent<O, 2>(block, call, index);
      else run_persistent<O, 4>(block, call, index);
    });
  }
  run_together(blocks, rng);
  blocks.clear();
  for (int tile = 0; tile < divided_up(c.lanes, replay_lanes); ++tile)
    blocks.push_back([&, tile] {
      HostBlock block(SharedLayout(layout, plan.units_per_block, 1, 1, false).size, nullptr, 0, 1, unsigned(tile));
      run_replay<O>(block, call, tile);
    });
  run_together(blocks, rng);
}

void run(Case& k) {
  const Header& is = k.is;
  Call call = {};
  call.shape = {int32_t(is.dim), int32_t(is.projection)};
  call.device = {int32_t(is.processors), is.shared, int32_t(is.cluster)};
  call.operand = Operand(int32_t(is.operand));
  const float* w[2] = {k.weights[0].data(), k.weights[1].data()};
  const float* b[2] = {k.biases[0].data(), k.biases[1].data()};
  const float* p[2] = {pointer(k.projections[0]), pointer(k.projections[1])};
  char* packed = aligned256(k.packed_memory, packed_size(call.shape));
  pack(call.shape, call.operand, w, b, p, packed, packed_size(call.shape));
  call.packed = packed;
  for (int d = 0; d < 2; ++d) {
    call.products[d] = k.products[d].data();
    call.rows[d] = pointer(k.rows[d]);
  }
  call.steps = int32_t(is.steps);
  call.live = k.live.data();
  call.begin = k.begin.data();
  call.reset = pointer(k.reset);
  call.reset_h = pointer(k.reset_h);
  call.reset_c = pointer(k.reset_c);
  const std::vector<float> h_first = k.h, c_first = k.c;
  call.output = k.output.data();
  call.lanes = int32_t(is.lanes);
  call.h_first = h_first.data();
  call.c_first = c_first.data();
  call.h = k.h.data();
  call.c = k.c.data();
  call.cell_clip = float(is.cell_clip);
  call.proj_clip = float(is.proj_clip);
  const bool persistent = is.tier == 2;
  const Plan plan = (persistent ? plan_persistent : plan_steps)(call.shape, call.device, call.lanes);
  call.scratch = aligned256(k.scratch_memory, size_t(plan.scratch));
  call.scratch_size = size_t(plan.scratch);
  check_call(call, plan);
  std::minstd_rand rng{unsigned(is.seed)};
  if (persistent) {
    const Patience patience = {&k.aborts, is.nanoseconds, uint32_t(is.first_count), int32_t(is.absent_block)};
    const auto direction = call.operand == Operand::fp16 ? run_persistent_direction<Fp16> : run_persistent_direction<Second>;
    for (int d = 0; d < 2; ++d) direction(call, plan, patience, d, rng);
  } else {
    (call.operand == Operand::fp16 ? run_steps<Fp16> : run_steps<Second>)(call, plan, Sums(int32_t(is.tier)), rng);
  }
}

int run_file(const char* in, const char* out) {
  std::ifstream from(in, std::ios::binary);
  std::ofstream to(out, std::ios::binary);
  Header header;
  while (from.read(reinterpret_cast<char*>(&header), sizeof header)) {
    Case k = read_case(header, from);
    run(k);
    write(to, k.output);
    write(to, k.h);
    write(to, k.c);
    write(to, std::vector<int32_t>{k.aborts});
  }
  return to ? 0 : 1;
}

}  // namespace simulator

int main(int argc, char** argv) {
  if (argc != 3) return std::fprintf(stderr, "usage: simulate_cuda IN OUT\n"), 2;
  try {
    return simulator::run_file(argv[1], argv[2]);
  } catch (const std::exception& error) {
    return std::fprintf(stderr, "%s\n", error.what()), 1;
  }
}
