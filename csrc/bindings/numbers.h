// The numeric arguments of a kernel call, a tuple made by torchrlopt/executors/eager/kernels/indirect.py.
#pragma once

#include <optional>
#include <string>

#include "bindings/bind.h"
#include "kernels/sequence.h"

namespace rlopt {

/// Reads a tuple of numbers of a given length.
class Numbers {
 public:
  Numbers(const py::tuple& items, Py_ssize_t length) : items_(items) {
    const Py_ssize_t given = PyTuple_GET_SIZE(items.ptr());
    if (given != length)
      throw py::value_error(std::to_string(length) + " numbers are expected, not " + std::to_string(given));
  }

  int64_t integer(Py_ssize_t at) const {
    const int64_t value = PyLong_AsLongLong(PyTuple_GET_ITEM(items_.ptr(), at));
    if (value == -1 && PyErr_Occurred() != nullptr) throw py::error_already_set();
    return value;
  }

  float number(Py_ssize_t at) const {
    const double value = PyFloat_AsDouble(PyTuple_GET_ITEM(items_.ptr(), at));
    if (value == -1.0 && PyErr_Occurred() != nullptr) throw py::error_already_set();
    return static_cast<float>(value);
  }

  /// A value of an enumeration with `count` members.
  template <class Kind>
  Kind kind(Py_ssize_t at, int64_t count, const char* name) const {
    const int64_t value = integer(at);
    if (value < 0 || value >= count) throw py::value_error(std::string("no such ") + name);
    return static_cast<Kind>(value);
  }

  /// The first eleven numbers.
  kernels::Window window() const {
    return {integer(0), integer(1), integer(2), integer(3), integer(4), integer(5),
            integer(6), integer(7), integer(8), integer(9), integer(10)};
  }

  /// The number of an element type; nothing if it is negative.
  std::optional<kernels::Element> element(Py_ssize_t at) const {
    const int64_t value = integer(at);
    if (value >= static_cast<int64_t>(kernels::kElements.size()))
      throw py::value_error("no such type of numbers");
    return value < 0 ? std::nullopt : std::optional(static_cast<kernels::Element>(value));
  }

  /// Three numbers, from `at` on.
  kernels::Epilogue epilogue(Py_ssize_t at) const {
    return {kind<kernels::Activation>(at, kernels::kNumActivations, "activation"), number(at + 1),
            number(at + 2)};
  }

 private:
  const py::tuple& items_;
};

/// Reads the arguments of an operation into its instruction.
inline void read_numbers(const py::tuple& items, kernels::Instruction& into) {
  switch (into.operation) {
    case kernels::Operation::kConvolve: {
      const Numbers given(items, 18);
      into.window = given.window();
      into.groups = given.integer(11);
      into.method = kernels::method_of(given.integer(12));
      into.epilogue = given.epilogue(13);
      into.types = {given.element(16), given.element(17)};
      return;
    }
    case kernels::Operation::kPool: {
      const Numbers given(items, 14);
      into.window = given.window();
      into.is_ceiled = given.integer(11) != 0;
      into.pool = given.kind<kernels::Pool>(12, kernels::kNumPools, "pool");
      into.types.result = given.element(13);
      return;
    }
    case kernels::Operation::kLinear: {
      const Numbers given(items, 7);
      into.window.out_channels = given.integer(0);
      into.method = kernels::method_of(given.integer(1));
      into.epilogue = given.epilogue(2);
      into.types = {given.element(5), given.element(6)};
      return;
    }
    case kernels::Operation::kPointwise: {
      const Numbers given(items, 5);
      into.pointwise = given.kind<kernels::Pointwise>(0, kernels::kNumPointwise, "pointwise operation");
      into.epilogue = given.epilogue(1);
      into.types.result = given.element(4);
      return;
    }
    case kernels::Operation::kRoom: {
      into.sizes = py::cast<std::vector<int64_t>>(items);
      if (into.sizes.empty()) throw py::value_error("a room has a type of numbers");
      into.types.result = Numbers(items, PyTuple_GET_SIZE(items.ptr())).element(0);
      into.sizes.erase(into.sizes.begin());
      return;
    }
    case kernels::Operation::kView:
    case kernels::Operation::kSlice:
      into.sizes = py::cast<std::vector<int64_t>>(items);
      return;
    case kernels::Operation::kShuffle:
      into.groups = Numbers(items, 1).integer(0);
      return;
    case kernels::Operation::kSame:
      return;
  }
}

}  // namespace rlopt
