// Times oneDNN's LSTM with projection, forward inference of one direction, for peers/onednn.py.
//   c++ -O2 -std=c++17 -I PREFIX/include onednn_lstm.cpp -L PREFIX/lib -ldnnl -Wl,-rpath,PREFIX/lib
//   ./a.out fp32|bf16 STEPS ROWS INPUT CELLS PROJECTION FOLDER
// FOLDER/operands has, in fp32: x [STEPS, ROWS, INPUT], W [INPUT, 4, CELLS], U [PROJECTION, 4, CELLS] with gates in the
// order i, f, candidate, o, bias [4, CELLS], W_P [CELLS, PROJECTION]. The outputs [STEPS, ROWS, PROJECTION] of a run
// from zero states go to FOLDER/outputs, and the implementation's name to stdout. Then a line on stdin is a number of
// runs, the answer the seconds that they took. oneDNN has no clips.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

#include "oneapi/dnnl/dnnl.hpp"

namespace {

using dnnl::memory;
using Tag = memory::format_tag;
using Type = memory::data_type;

const dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
dnnl::stream in_order(cpu);

memory filled(const memory::desc& desc, std::ifstream& from) {
  memory result(desc, cpu);
  if (!from.read(static_cast<char*>(result.get_data_handle()), std::streamsize(desc.get_size())))
    throw std::runtime_error("operands: the file is too short");
  return result;
}

memory zeros(const memory::desc& desc) {
  memory result(desc, cpu);
  std::fill_n(static_cast<char*>(result.get_data_handle()), desc.get_size(), 0);
  return result;
}

// The same values in the type and layout of `desc`.
memory as(const memory::desc& desc, memory from) {
  memory result(desc, cpu);
  dnnl::reorder(from, result).execute(in_order, from, result);
  in_order.wait();
  return result;
}

// W_P as the kernel reads it. In bf16 oneDNN 3.2 asks for ldOi32o, but its brgemm kernel multiplies pairs of rows as if
// it had asked for ldOI32o2i, which has no tag: outputs would belong to other columns.
memory projection_weights(const dnnl::lstm_forward::primitive_desc& of, const memory& p) {
  memory result = as(of.weights_projection_desc(), p);
  const memory::desc desc = result.get_desc();
  if (desc.get_data_type() != Type::bf16 || desc.get_inner_blks() != memory::dims{32} ||
      std::string(of.impl_info_str()).rfind("brgemm", 0) != 0)
    return result;
  constexpr size_t columns = 32;
  auto* pair = static_cast<uint16_t*>(result.get_data_handle());
  for (uint16_t* const end = pair + desc.get_size() / sizeof(uint16_t); pair < end; pair += 2 * columns) {
    const std::vector<uint16_t> rows(pair, pair + 2 * columns);
    for (size_t o = 0; o < columns; ++o) pair[2 * o] = rows[o], pair[2 * o + 1] = rows[columns + o];
  }
  return result;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 8) throw std::invalid_argument("expected fp32|bf16 STEPS ROWS INPUT CELLS PROJECTION FOLDER");
  const Type type = std::string(argv[1]) == "bf16" ? Type::bf16 : Type::f32;
  const int64_t steps = std::atoll(argv[2]), rows = std::atoll(argv[3]), input = std::atoll(argv[4]),
                cells = std::atoll(argv[5]), projection = std::atoll(argv[6]);
  const std::string folder = argv[7];

  std::ifstream operands(folder + "/operands", std::ios::binary);
  const memory x = filled({{steps, rows, input}, Type::f32, Tag::tnc}, operands);
  const memory w = filled({{1, 1, input, 4, cells}, Type::f32, Tag::ldigo}, operands);
  const memory u = filled({{1, 1, projection, 4, cells}, Type::f32, Tag::ldigo}, operands);
  const memory bias = filled({{1, 1, 4, cells}, Type::f32, Tag::ldgo}, operands);
  const memory p = filled({{1, 1, cells, projection}, Type::f32, Tag::ldio}, operands);

  const memory::desc layer({steps, rows, input}, type, Tag::tnc), out({steps, rows, projection}, type, Tag::tnc),
      h({1, 1, rows, projection}, type, Tag::ldnc), c({1, 1, rows, cells}, Type::f32, Tag::ldnc),
      any_w({1, 1, input, 4, cells}, type, Tag::any), any_u({1, 1, projection, 4, cells}, type, Tag::any),
      any_p({1, 1, cells, projection}, type, Tag::any);
  const dnnl::lstm_forward::primitive_desc description(
      cpu, dnnl::prop_kind::forward_inference, dnnl::rnn_direction::unidirectional_left2right, layer, h, c, any_w,
      any_u, memory::desc(), any_p, bias.get_desc(), out, h, c);
  const memory result = zeros(out);
  std::unordered_map<int, memory> arguments = {
      {DNNL_ARG_SRC_LAYER, as(layer, x)},
      {DNNL_ARG_SRC_ITER, zeros(h)},
      {DNNL_ARG_SRC_ITER_C, zeros(c)},
      {DNNL_ARG_WEIGHTS_LAYER, as(description.weights_layer_desc(), w)},
      {DNNL_ARG_WEIGHTS_ITER, as(description.weights_iter_desc(), u)},
      {DNNL_ARG_WEIGHTS_PROJECTION, projection_weights(description, p)},
      {DNNL_ARG_BIAS, bias},
      {DNNL_ARG_DST_LAYER, result},
      {DNNL_ARG_DST_ITER, zeros(h)},
      {DNNL_ARG_DST_ITER_C, zeros(c)},
      {DNNL_ARG_WORKSPACE, zeros(description.workspace_desc())}};
  const dnnl::lstm_forward lstm(description);
  const auto run = [&] {
    lstm.execute(in_order, arguments);
    in_order.wait();
  };

  run();
  const memory plain = as({{steps, rows, projection}, Type::f32, Tag::tnc}, result);
  std::ofstream(folder + "/outputs", std::ios::binary)
      .write(static_cast<const char*>(plain.get_data_handle()), std::streamsize(plain.get_desc().get_size()));
  std::printf("%s\n", description.impl_info_str());
  std::fflush(stdout);
  for (int count; std::scanf("%d", &count) == 1;) {
    const auto begin = std::chrono::steady_clock::now();
    for (int k = 0; k < count; ++k) run();
    std::printf("%.9f\n", std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    std::fflush(stdout);
  }
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "onednn_lstm: %s\n", error.what());
  return 1;
}
