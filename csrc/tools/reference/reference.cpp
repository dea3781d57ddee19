#include "tools/reference/reference.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "tools/reference/functions.h"
#include "tools/reference/kernels.h"

namespace rlopt {

namespace {

bool uses_doubles(DType dtype, Arithmetic arithmetic) {
  return arithmetic == Arithmetic::Float64 && is_floating(dtype);
}

Sizes static_dims(const TensorType& type) {
  Sizes dims;
  dims.reserve(type.dims.size());
  for (const Dim& dim : type.dims) dims.push_back(dim.value());
  return dims;
}

/// Truncates to the dtype's low bits, with sign.
int64_t wrap(int64_t value, DType dtype) {
  if (dtype == DType::boolean) return value != 0 ? 1 : 0;
  if (!is_integer(dtype)) return value;
  const int unused = 64 - 8 * dtype_bytes(dtype);
  const uint64_t high = static_cast<uint64_t>(value) << unused;
  return dtype >= DType::u8 ? static_cast<int64_t>(high >> unused) : static_cast<int64_t>(high) >> unused;
}

int64_t real_to_int(double value) {
  // Out of range is undefined in ONNX; any fixed value is fine.
  if (std::isnan(value) || std::fabs(value) >= 9.2e18) return std::numeric_limits<int64_t>::min();
  return static_cast<int64_t>(value);
}

/// A real number as an element of an integer or bool tensor.
int64_t whole_element(double value, DType dtype) {
  if (dtype == DType::boolean) return value != 0 ? 1 : 0;
  return wrap(real_to_int(value), dtype);
}

/// Fills a tensor of this dtype with the values of a Constant; a single one fills all of it.
template <class Number>
void fill(RefTensor& tensor, const std::vector<Number>& values, DType dtype, Arithmetic arithmetic) {
  const int64_t size = count(tensor.dims);
  if (values.size() != 1 && static_cast<int64_t>(values.size()) != size) {
    throw TypeError("Constant: expected " + std::to_string(size) + " values, got " +
                    std::to_string(values.size()));
  }
  for (int64_t i = 0; i < size; ++i) {
    const Number value = values[values.size() == 1 ? 0 : i];
    const auto real = static_cast<double>(value);
    if (uses_doubles(dtype, arithmetic)) {
      tensor.doubles.push_back(real);
    } else if (is_floating(dtype)) {
      tensor.ints.push_back(FieldAlgebra::from_double(real));
    } else if constexpr (std::is_same_v<Number, double>) {
      tensor.ints.push_back(whole_element(value, dtype));
    } else {
      tensor.ints.push_back(wrap(value, dtype));
    }
  }
}

/// One element of an integer, bool or field tensor.
int64_t cast_element(int64_t value, DType from, DType to) {
  if (to == DType::boolean) return value != 0 ? 1 : 0;
  if (is_floating(to)) return FieldAlgebra::reduce(value);
  if (is_floating(from)) {
    // Truncation is not a function of the residue: uninterpreted, and small so that it fits every integer
    // dtype.
    return FieldAlgebra::uninterpreted(FieldAlgebra::key("cast"), value) % 64;
  }
  return wrap(value, to);
}

/// Casts between dtypes. Rounding to fewer bits is not modelled: a cast from real to real is the identity.
void cast(const Call& call, Arithmetic arithmetic) {
  const DType from = call.in_dtypes[0];
  const DType to = call.node.types->front().dtype;
  const RefTensor& x = *call.in[0];
  RefTensor& y = call.out[0];
  if (is_floating(from) && is_floating(to)) {
    y.ints = x.ints;
    y.doubles = x.doubles;
  } else if (uses_doubles(from, arithmetic)) {
    for (const double value : x.doubles) y.ints.push_back(whole_element(value, to));
  } else if (uses_doubles(to, arithmetic)) {
    for (const int64_t value : x.ints) y.doubles.push_back(static_cast<double>(value));
  } else {
    for (const int64_t value : x.ints) y.ints.push_back(cast_element(value, from, to));
  }
}

/// False if the algebra does not support the operator.
template <class A>
bool evaluate_over(const Call& call) {
  static const std::array<Kernel, kNumOps> kernels = [] {
    std::array<Kernel, kNumOps> table{};
    for (const auto rows : {elementwise_rows<A>, broadcast_rows<A>, movement_rows<A>, contraction_rows<A>,
                            window_rows<A>, reduction_rows<A>, normalisation_rows<A>, attention_rows<A>}) {
      for (const auto& [op, kernel] : rows()) table[at(op)] = kernel;
    }
    return table;
  }();
  const Kernel kernel = kernels[at(call.node.op)];
  if (kernel != nullptr) kernel(call);
  return kernel != nullptr;
}

/// Shape-like operators, the same in every arithmetic. False: not one of them.
bool evaluate_host(const Call& call, Arithmetic arithmetic) {
  const Node& node = call.node;
  RefTensor& out = call.out[0];
  const DType dtype = node.types->front().dtype;
  switch (node.op) {
    case Op::Constant: {
      const auto& values = std::get<Floats>(node.attr("value"));
      if (!values.empty()) {
        fill(out, values, dtype, arithmetic);
      } else {
        fill(out, node.attr_ints("int_value"), dtype, arithmetic);
      }
      return true;
    }
    case Op::ConstantOfShape:
      fill(out, Floats{node.attr_float("value")}, dtype, arithmetic);
      return true;
    case Op::Cast:
      cast(call, arithmetic);
      return true;
    case Op::Size:
      out.ints.push_back(count(call.in[0]->dims));
      return true;
    case Op::Shape: {
      const Sizes& dims = call.in[0]->dims;
      const auto rank = static_cast<int64_t>(dims.size());
      const int64_t start = node.attr_int("start");
      const int64_t first = std::clamp<int64_t>(start < 0 ? start + rank : start, 0, rank);
      out.ints.assign(dims.begin() + first, dims.begin() + first + out.dims[0]);
      return true;
    }
    default:
      return false;
  }
}

void evaluate_node(const Call& call, Arithmetic arithmetic) {
  if (evaluate_host(call, arithmetic)) return;
  const Node& node = call.node;
  // The values of a Where determine its algebra, not the condition.
  const DType dtype =
      call.in_dtypes.empty() ? node.types->front().dtype : call.in_dtypes[node.op == Op::Where ? 1 : 0];
  bool is_known = false;
  if (uses_doubles(dtype, arithmetic)) {
    is_known = evaluate_over<RealAlgebra>(call);
  } else if (is_floating(dtype)) {
    is_known = evaluate_over<FieldAlgebra>(call);
  } else if (dtype != DType::c64 && dtype != DType::c128 && dtype != DType::other) {
    is_known = evaluate_over<IntAlgebra>(call);
  }
  if (!is_known)
    throw TypeError(node.info().name + ": the reference has no such operator on " + dtype_name(dtype));
  for (size_t i = 0; i < call.out.size(); ++i) {
    const DType to = (*node.types)[i].dtype;
    if (!is_integer(to)) continue;
    for (int64_t& value : call.out[i].ints) value = wrap(value, to);
  }
}

/// Converts input data to the internal form: integers and bool in `ints`.
RefTensor import_tensor(const RefTensor& given, const TensorType& type, Arithmetic arithmetic) {
  const Sizes dims = static_dims(type);
  if (given.dims != dims)
    throw TypeError("input data: expected " + type.str() + ", got shape " + ints_str(given.dims));
  RefTensor tensor{dims, {}, {}};
  const auto size = static_cast<size_t>(count(dims));
  const bool wants_doubles = uses_doubles(type.dtype, arithmetic);
  if ((arithmetic == Arithmetic::Float64 ? given.doubles.size() : given.ints.size()) != size) {
    throw TypeError("input data: expected " + std::to_string(size) + " elements for " + type.str());
  }
  if (wants_doubles) {
    tensor.doubles = given.doubles;
  } else if (arithmetic == Arithmetic::Float64) {
    for (const double value : given.doubles) tensor.ints.push_back(wrap(real_to_int(value), type.dtype));
  } else {
    tensor.ints = given.ints;
    for (int64_t& value : tensor.ints)
      value = is_floating(type.dtype) ? FieldAlgebra::reduce(value) : wrap(value, type.dtype);
  }
  return tensor;
}

/// Converts back to one kind of storage per arithmetic.
RefTensor export_tensor(const RefTensor& value, Arithmetic arithmetic) {
  if (arithmetic != Arithmetic::Float64 || value.ints.empty()) return value;
  return {value.dims, {}, std::vector<double>(value.ints.begin(), value.ints.end())};
}

}  // namespace

std::vector<RefTensor> evaluate(const Graph& graph, const std::unordered_map<NodeId, RefTensor>& inputs,
                                Arithmetic arithmetic) {
  std::vector<std::vector<RefTensor>> values(static_cast<size_t>(graph.end_id()));
  for (const NodeId id : graph.topological_order()) {
    const Node& node = graph.node(id);
    std::vector<RefTensor>& results = values[at(id)];
    if (node.op == Op::Input || node.op == Op::Weight) {
      const auto given = inputs.find(id);
      if (given == inputs.end()) throw TypeError("no data for input '" + node.names->outputs.front() + "'");
      results.push_back(import_tensor(given->second, node.types->front(), arithmetic));
      continue;
    }
    for (const TensorType& type : *node.types) results.push_back({static_dims(type), {}, {}});
    Call call{node, {}, {}, results};
    for (const Value& input : node.inputs) {
      const auto index = static_cast<size_t>(input.index);
      call.in.push_back(input.present() ? &values[at(input.node)][index] : nullptr);
      call.in_dtypes.push_back(input.present() ? graph.type(input).dtype : DType::other);
    }
    evaluate_node(call, arithmetic);
  }
  std::vector<RefTensor> outputs;
  for (const Value& output : graph.outputs()) {
    outputs.push_back(export_tensor(values[at(output.node)][at(output.index)], arithmetic));
  }
  return outputs;
}

Sizes row_major_strides(const Sizes& dims) {
  Sizes strides(dims.size(), 1);
  for (size_t i = dims.size(); i > 1; --i) strides[i - 2] = strides[i - 1] * dims[i - 1];
  return strides;
}

int64_t count(const Sizes& dims) {
  return std::accumulate(dims.begin(), dims.end(), int64_t{1}, std::multiplies<>());
}

Sizes broadcast_strides(const Sizes& dims, const Sizes& shape) {
  const Sizes own = row_major_strides(dims);
  Sizes strides(shape.size(), 0);
  const size_t shift = shape.size() - dims.size();
  for (size_t i = 0; i < dims.size(); ++i) strides[i + shift] = dims[i] == 1 ? 0 : own[i];
  return strides;
}

Sizes all_offsets(const Sizes& dims, const Sizes& strides) {
  Sizes offsets(static_cast<size_t>(count(dims)));
  for_each_index<1>(dims, {strides},
                    [&](int64_t i, const std::array<int64_t, 1>& at) { offsets[i] = at[0]; });
  return offsets;
}

}  // namespace rlopt
