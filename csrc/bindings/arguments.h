// Converts arguments from Python to those of the contracts; pointers are passed as integers.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "char_cnn.h"

namespace elmo_fast {

namespace py = pybind11;

using release = py::call_guard<py::gil_scoped_release>;

using Address = uintptr_t;            // 0: null
using Pair = std::array<Address, 2>;  // forward, backward

template <class T>
T* at(Address address) {
  return reinterpret_cast<T*>(address);
}

// Reads the keyword arguments of a call into the fields of a struct, name by name. TypeError for a name that is missing
// or has a value of another type.
class Arguments {
 public:
  Arguments(const char* function, const py::kwargs& keywords) : function_(function), keywords_(keywords) {}

  // Name, field, name, field and so on. A field is a number, an enumeration, a pointer or a pair of pointers.
  template <class Field, class... More>
  void read(const char* name, Field& field, More&&... more) {
    set(name, field);
    if constexpr (sizeof...(more) > 0) read(more...);
  }

  template <class T>
  T get(const char* name) {
    const py::handle value = find(name);
    if (!value) throw py::type_error(function_ + "() misses the argument '" + name + "'");
    try {
      return value.cast<T>();
    } catch (const py::cast_error&) {
      throw py::type_error(function_ + "(): " + name + ": unexpected value " + std::string(py::repr(value)));
    }
  }

  // run(), without the interpreter's lock.
  template <class Run>
  auto finish(const Run& run) const {
    const py::gil_scoped_release released;
    return run();
  }

 private:
  py::handle find(const char* name) const { return PyDict_GetItemString(keywords_.ptr(), name); }

  template <class T>
  void set(const char* name, T& field) {
    if constexpr (std::is_enum_v<T>) field = static_cast<T>(get<std::underlying_type_t<T>>(name));
    else field = get<T>(name);
  }
  template <class T>
  void set(const char* name, T*& field) {
    field = at<T>(get<Address>(name));
  }
  template <class T>
  void set(const char* name, T* (&field)[2]) {
    const auto pair = get<Pair>(name);
    for (size_t d = 0; d < 2; ++d) field[d] = at<T>(pair[d]);
  }

  const std::string function_;
  const py::kwargs keywords_;
};

// The argument "banks": (width, filters, first column, address of the weight, address of its gradient or 0) of each.
inline std::vector<CharBank> char_banks(Arguments& given) {
  using Bank = std::tuple<int64_t, int64_t, int64_t, Address, Address>;
  std::vector<CharBank> banks;
  for (const auto& [width, filters, first, weight, grad] : given.get<std::vector<Bank>>("banks"))
    banks.push_back({width, filters, first, at<const float>(weight), at<float>(grad)});
  return banks;
}

}  // namespace elmo_fast
