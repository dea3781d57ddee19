// The numeric arguments of a kernel call, a tuple made by torchrlopt/executors/eager/kernels/indirect.py.
#pragma once

#include <string>

#include "bindings/bind.h"
#include "kernels/shapes.h"

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

  /// Three numbers, from `at` on.
  kernels::Epilogue epilogue(Py_ssize_t at) const {
    return {kind<kernels::Activation>(at, kernels::kNumActivations, "activation"), number(at + 1),
            number(at + 2)};
  }

 private:
  const py::tuple& items_;
};

struct ConvolutionNumbers {
  kernels::Window window;
  int64_t groups;
  kernels::Method method;
  kernels::Epilogue epilogue;

  explicit ConvolutionNumbers(const Numbers& given)
      : window(given.window()),
        groups(given.integer(11)),
        method(kernels::method_of(given.integer(12))),
        epilogue(given.epilogue(13)) {}
  explicit ConvolutionNumbers(const py::tuple& items) : ConvolutionNumbers(Numbers(items, 16)) {}
};

struct PoolNumbers {
  kernels::Window window;
  bool is_ceiled;
  kernels::Pool pool;

  explicit PoolNumbers(const Numbers& given)
      : window(given.window()),
        is_ceiled(given.integer(11) != 0),
        pool(given.kind<kernels::Pool>(12, kernels::kNumPools, "pool")) {}
  explicit PoolNumbers(const py::tuple& items) : PoolNumbers(Numbers(items, 13)) {}
};

struct LinearNumbers {
  int64_t outputs;
  kernels::Method method;
  kernels::Epilogue epilogue;

  explicit LinearNumbers(const Numbers& given)
      : outputs(given.integer(0)),
        method(kernels::method_of(given.integer(1))),
        epilogue(given.epilogue(2)) {}
  explicit LinearNumbers(const py::tuple& items) : LinearNumbers(Numbers(items, 5)) {}
};

struct PointwiseNumbers {
  kernels::Pointwise pointwise;
  kernels::Epilogue epilogue;

  explicit PointwiseNumbers(const Numbers& given)
      : pointwise(given.kind<kernels::Pointwise>(0, kernels::kNumPointwise, "pointwise operation")),
        epilogue(given.epilogue(1)) {}
  explicit PointwiseNumbers(const py::tuple& items) : PointwiseNumbers(Numbers(items, 4)) {}
};

}  // namespace rlopt
