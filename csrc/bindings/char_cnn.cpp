// Python bindings of csrc/char_cnn.h.
#include "char_cnn.h"

#include "arguments.h"

namespace elmo_fast {
namespace {

// The arguments shared by a forward and its gradients; the result points to `banks`.
CharCnnCall char_cnn_call(Arguments& given, const std::vector<CharBank>& banks) {
  CharCnnCall call = {};
  given.read("ids", call.ids, "tokens", call.tokens, "characters", call.characters, "padding", call.padding);
  given.read("table", call.table, "table_rows", call.table_rows, "dim", call.dim, "threads", call.threads);
  call.banks = banks.data();
  call.bank_count = int64_t(banks.size());
  for (const CharBank& bank : banks) call.filters += bank.filters;
  return call;
}

void run_char_cnn(const py::kwargs& keywords) {
  Arguments given("char_cnn_forward", keywords);
  const std::vector<CharBank> banks = char_banks(given);
  CharCnnCall call = char_cnn_call(given, banks);
  float* values;
  uint32_t* picks;
  given.read("biases", call.biases, "activation", call.activation, "values", values, "picks", picks);
  given.finish([&] { char_cnn_forward(call, values, picks); });
}

void run_char_cnn_backward(const py::kwargs& keywords) {
  Arguments given("char_cnn_backward", keywords);
  const std::vector<CharBank> banks = char_banks(given);
  const CharCnnCall call = char_cnn_call(given, banks);
  const float* grad_values;
  const uint32_t* picks;
  float* grad_table;
  given.read("grad_values", grad_values, "picks", picks, "grad_table", grad_table);
  given.finish([&] { char_cnn_backward(call, grad_values, picks, grad_table); });
}

}  // namespace

void bind_char_cnn(py::module_& m) {
  using namespace py::literals;
  m.attr("activations") =
      py::dict("relu"_a = static_cast<int>(Activation::relu), "tanh"_a = static_cast<int>(Activation::tanh));
  m.def("char_cnn_forward", run_char_cnn);
  m.def("char_cnn_backward", run_char_cnn_backward);
}

}  // namespace elmo_fast
