// Functions of tensors for conditions.
#include "library/expression.h"

namespace rlopt {

namespace {

using Args = std::vector<Bound>;
using T = ExprType;

const TensorType& type_of(const CallContext& context, const Bound& tensor) {
  return context.graph.type(std::get<Value>(tensor.value));
}
Bound shape_of(const TensorType& type) {
  BoundList list;
  for (const Dim& dim : type.dims) list.push_back({dim});
  return {std::move(list)};
}
Bound fn_rank(const CallContext& c, const Args& a) {
  const TensorType& type = type_of(c, a[0]);
  return type.has_rank ? Bound{Dim(type.rank())} : Bound{};
}
Bound fn_dim(const CallContext& c, const Args& a) {
  const TensorType& type = type_of(c, a[0]);
  const auto at = type.has_rank ? list_position(a[1], type.dims.size()) : std::nullopt;
  return at ? Bound{type.dims[*at]} : Bound{};
}
Bound fn_shape(const CallContext& c, const Args& a) {
  const TensorType& type = type_of(c, a[0]);
  return type.has_rank ? shape_of(type) : Bound{};
}
Bound fn_size(const CallContext& c, const Args& a) {
  const TensorType& type = type_of(c, a[0]);
  if (!type.has_rank) return {};
  Dim product = 1;
  for (const Dim& dim : type.dims) product = product * dim;
  return {product};
}
Bound fn_dtype(const CallContext& c, const Args& a) {
  return {std::string(dtype_name(type_of(c, a[0]).dtype))};
}
Bound fn_is_float(const CallContext& c, const Args& a) { return {is_floating(type_of(c, a[0]).dtype)}; }
Bound fn_is_static(const CallContext& c, const Args& a) {
  return {c.graph.is_static(std::get<Value>(a[0].value))};
}
Bound fn_is_weight(const CallContext& c, const Args& a) {
  return {c.graph.node(std::get<Value>(a[0].value).node).op == Op::Weight};
}
Bound fn_is_constant(const CallContext& c, const Args& a) {
  return {c.graph.node(std::get<Value>(a[0].value).node).op == Op::Constant};
}
Bound fn_is_scalar(const CallContext& c, const Args& a) {
  return {scalar_constant(c.graph, std::get<Value>(a[0].value)).has_value()};
}
Bound fn_value(const CallContext& c, const Args& a) {
  const auto number = scalar_constant(c.graph, std::get<Value>(a[0].value));
  return number ? Bound{*number} : Bound{};
}
Bound fn_values(const CallContext& c, const Args& a) {
  const Node& node = c.graph.node(std::get<Value>(a[0].value).node);
  if (node.op != Op::Constant) return {};
  const Bound floats = to_bound(node.attr("value"));
  return std::get<BoundList>(floats.value).empty() ? to_bound(node.attr("int_value")) : floats;
}
Bound fn_same_shape(const CallContext& c, const Args& a) {
  const TensorType &x = type_of(c, a[0]), &y = type_of(c, a[1]);
  if (!x.has_rank || !y.has_rank) return {};
  return binary(BinaryOp::Equal, shape_of(x), shape_of(y));
}
/// Whether broadcasting x with y leaves y's shape unchanged.
Bound fn_broadcasts_to(const CallContext& c, const Args& a) {
  const TensorType &x = type_of(c, a[0]), &y = type_of(c, a[1]);
  if (!x.has_rank || !y.has_rank) return {};
  if (x.rank() > y.rank()) return {false};
  Bound all{true};
  for (int i = 1; i <= x.rank(); ++i) {
    const Dim &from = x.dims[at(x.rank() - i)], &to = y.dims[at(y.rank() - i)];
    if (from == Dim(1) || from == to) continue;
    const Bound equal = binary(BinaryOp::Equal, {from}, {to});
    if (equal == Bound{false}) return equal;
    all = equal;
  }
  return all;
}

}  // namespace

std::vector<Function> tensor_functions() {
  return {
      {"rank", {T::Tensor}, T::Int, fn_rank},
      {"dim", {T::Tensor, T::Int}, T::Int, fn_dim},
      {"shape", {T::Tensor}, T::List, fn_shape},
      {"size", {T::Tensor}, T::Int, fn_size},
      {"dtype", {T::Tensor}, T::String, fn_dtype},
      {"is_float", {T::Tensor}, T::Bool, fn_is_float},
      {"is_static", {T::Tensor}, T::Bool, fn_is_static},
      {"is_weight", {T::Tensor}, T::Bool, fn_is_weight},
      {"is_constant", {T::Tensor}, T::Bool, fn_is_constant},
      {"is_scalar", {T::Tensor}, T::Bool, fn_is_scalar},
      {"value", {T::Tensor}, T::Float, fn_value},
      {"values", {T::Tensor}, T::List, fn_values},
      {"same_shape", {T::Tensor, T::Tensor}, T::Bool, fn_same_shape},
      {"broadcasts_to", {T::Tensor, T::Tensor}, T::Bool, fn_broadcasts_to},
  };
}

}  // namespace rlopt
