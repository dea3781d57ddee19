// The reference interpreter on NumPy arrays.
#include "tools/reference/reference.h"

#include <pybind11/numpy.h>

#include <algorithm>

#include "tools/bindings/bind.h"

namespace rlopt {

namespace {

Arithmetic parse_arithmetic(const std::string& name) {
  if (name == "float64") return Arithmetic::Float64;
  if (name == "field") return Arithmetic::Field;
  throw TypeError("arithmetic: expected float64 or field, got '" + name + "'");
}

template <class T>
std::vector<T> elements(const py::handle& array, std::vector<int64_t>& dims) {
  const auto dense = py::array_t<T, py::array::c_style | py::array::forcecast>::ensure(array);
  if (!dense) throw py::error_already_set();
  dims.assign(dense.shape(), dense.shape() + dense.ndim());
  return std::vector<T>(dense.data(), dense.data() + dense.size());
}

std::unordered_map<NodeId, RefTensor> read_inputs(const Graph& graph, const py::dict& arrays,
                                                  Arithmetic arithmetic) {
  std::unordered_map<NodeId, RefTensor> inputs;
  for (const NodeId id : graph.inputs()) {
    const std::string& name = graph.node(id).names->node;
    if (!arrays.contains(name)) throw TypeError("no data for input '" + name + "'");
    RefTensor tensor;
    const py::object array = arrays[py::str(name)];
    if (arithmetic == Arithmetic::Float64) {
      tensor.doubles = elements<double>(array, tensor.dims);
    } else {
      tensor.ints = elements<int64_t>(array, tensor.dims);
    }
    inputs.emplace(id, std::move(tensor));
  }
  return inputs;
}

template <class T, class S>
py::array to_array(const std::vector<int64_t>& dims, const std::vector<S>& values) {
  py::array_t<T> array(dims);
  std::transform(values.begin(), values.end(), array.mutable_data(),
                 [](S value) { return static_cast<T>(value); });
  return array;
}

/// float64 for reals (int64 over the field), int64 for integers, bool for bool.
py::array write_output(const RefTensor& tensor, DType dtype, Arithmetic arithmetic) {
  if (arithmetic != Arithmetic::Float64) {
    return dtype == DType::boolean ? to_array<bool>(tensor.dims, tensor.ints)
                                   : to_array<int64_t>(tensor.dims, tensor.ints);
  }
  if (is_floating(dtype)) return to_array<double>(tensor.dims, tensor.doubles);
  return dtype == DType::boolean ? to_array<bool>(tensor.dims, tensor.doubles)
                                 : to_array<int64_t>(tensor.dims, tensor.doubles);
}

py::list evaluate_arrays(const Graph& graph, const py::dict& arrays, const std::string& arithmetic_name) {
  const Arithmetic arithmetic = parse_arithmetic(arithmetic_name);
  const auto inputs = read_inputs(graph, arrays, arithmetic);
  const auto results = without_gil([&] { return evaluate(graph, inputs, arithmetic); });
  py::list outputs;
  for (size_t i = 0; i < results.size(); ++i) {
    outputs.append(write_output(results[i], graph.type(graph.outputs()[i]).dtype, arithmetic));
  }
  return outputs;
}

}  // namespace

void bind_reference(py::module_& m) {
  m.def("evaluate", &evaluate_arrays, py::arg("graph"), py::arg("inputs"), py::arg("arithmetic") = "float64",
        "Evaluates all outputs by the reference interpreter, on arrays by input name. All dims must be "
        "static.");
}

}  // namespace rlopt
