// Reference: elementwise functions, and the activations of fused operators.
#include "tools/reference/functions.h"
#include "tools/reference/kernels.h"

namespace rlopt {

namespace {

/// Applies `function` to each element.
template <class A, class F>
void map(const Call& call, F function) {
  const auto& x = call.operand<typename A::T>();
  auto& y = call.result<typename A::T>();
  for (size_t i = 0; i < x.size(); ++i) y[i] = function(x[i]);
}

/// Real operand, bool result.
template <class A, class F>
void test(const Call& call, F predicate) {
  const auto& x = call.operand<typename A::T>();
  auto& y = call.result<int64_t>();
  for (size_t i = 0; i < x.size(); ++i) y[i] = predicate(x[i]) ? 1 : 0;
}

/// A function of an element and of the operator's float attributes, in the order of its schema.
template <class A, auto kFunction>
void unary(const Call& call) {
  using T = typename A::T;
  std::array<T, 2> numbers{};
  size_t count = 0;
  for (const AttrValue& value : call.node.attrs->values()) {
    const auto* number = std::get_if<double>(&value);
    if (number != nullptr && count < numbers.size()) numbers[count++] = A::from_double(*number);
  }
  if constexpr (std::is_invocable_v<decltype(kFunction), T>) {
    return map<A>(call, [](T x) { return kFunction(x); });
  } else if constexpr (std::is_invocable_v<decltype(kFunction), T, T>) {
    return map<A>(call, [a = numbers[0]](T x) { return kFunction(x, a); });
  } else {
    return map<A>(call, [a = numbers[0], b = numbers[1]](T x) { return kFunction(x, a, b); });
  }
}

template <class A>
void gelu(const Call& call) {
  using F = Functions<A>;
  return call.node.attr_string("approximate") == "tanh" ? unary<A, F::gelu_tanh>(call)
                                                        : unary<A, F::gelu>(call);
}

template <class A>
void is_infinite(const Call& call) {
  using T = typename A::T;
  const bool negative = call.node.attr_int("detect_negative") != 0;
  const bool positive = call.node.attr_int("detect_positive") != 0;
  return test<A>(call, [=](T x) {
    return A::is_infinite(x) && (A::less(x, Functions<A>::zero()) ? negative : positive);
  });
}

template <class A>
void is_nan(const Call& call) {
  return test<A>(call, [](typename A::T x) { return A::is_nan(x); });
}

/// ONNX's Shrink.
template <class A>
typename A::T shrink(typename A::T x, typename A::T lambd, typename A::T bias) {
  if (A::less(lambd, x)) return A::sub(x, bias);
  return A::less(x, A::neg(lambd)) ? A::add(x, bias) : Functions<A>::zero();
}

template <class A>
void logical_not(const Call& call) {
  using T = typename A::T;
  return test<A>(call, [](T x) { return x == T(0); });
}

void bitwise_not(const Call& call) {
  map<IntAlgebra>(call, [](int64_t x) { return ~x; });
}

}  // namespace

/// One row per operator.
template <class A>
std::vector<KernelRow> elementwise_rows() {
  using T = typename A::T;
  using F = Functions<A>;
  return {
      {Op::Abs, unary<A, F::abs>},
      {Op::Acos, unary<A, A::acos>},
      {Op::Acosh, unary<A, A::acosh>},
      {Op::Asin, unary<A, A::asin>},
      {Op::Asinh, unary<A, A::asinh>},
      {Op::Atan, unary<A, A::atan>},
      {Op::Atanh, unary<A, A::atanh>},
      {Op::BitwiseNot, std::is_same_v<A, IntAlgebra> ? bitwise_not : nullptr},
      {Op::Ceil, unary<A, A::ceil>},
      {Op::Celu, unary<A, F::celu>},
      {Op::Clip, unary<A, F::clip>},
      {Op::Cos, unary<A, A::cos>},
      {Op::Cosh, unary<A, A::cosh>},
      {Op::Elu, unary<A, F::elu>},
      {Op::Erf, unary<A, A::erf>},
      {Op::Exp, unary<A, A::exp>},
      {Op::Floor, unary<A, A::floor>},
      {Op::Gelu, gelu<A>},
      {Op::HardSigmoid, unary<A, F::hard_sigmoid>},
      {Op::HardSwish, unary<A, F::hard_swish>},
      {Op::Identity, unary<A, [](T x) { return x; }>},
      {Op::IsInf, is_infinite<A>},
      {Op::IsNaN, is_nan<A>},
      {Op::LeakyRelu, unary<A, F::leaky_relu>},
      {Op::Log, unary<A, A::log>},
      {Op::Mish, unary<A, F::mish>},
      {Op::Neg, unary<A, A::neg>},
      {Op::Not, logical_not<A>},
      {Op::Reciprocal, unary<A, F::reciprocal>},
      {Op::Relu, unary<A, F::relu>},
      {Op::Round, unary<A, A::round>},
      {Op::Selu, unary<A, F::selu>},
      {Op::Sigmoid, unary<A, F::sigmoid>},
      {Op::Shrink, unary<A, shrink<A>>},
      {Op::Sign, unary<A, F::sign>},
      {Op::Sin, unary<A, A::sin>},
      {Op::Sinh, unary<A, A::sinh>},
      {Op::Softplus, unary<A, F::softplus>},
      {Op::Softsign, unary<A, F::softsign>},
      {Op::Sqrt, unary<A, A::sqrt>},
      {Op::Swish, unary<A, F::swish>},
      {Op::Tan, unary<A, A::tan>},
      {Op::Tanh, unary<A, A::tanh>},
      {Op::ThresholdedRelu, unary<A, F::thresholded_relu>},
  };
}

template <class A>
void activate(const Node& node, std::vector<typename A::T>& values) {
  using T = typename A::T;
  using F = Functions<A>;
  const std::string& name = node.attr_string("activation");
  if (name.empty()) return;
  const double alpha = node.attr_float("alpha");
  const double beta = node.attr_float("beta");
  const auto apply = [&values](auto function) {
    for (T& value : values) value = function(value);
  };
  if (name == "Relu") return apply(F::relu);
  if (name == "Gelu") return apply(F::gelu);
  if (name == "GeluTanh") return apply(F::gelu_tanh);
  if (name == "Swish") return apply([](T x) { return F::swish(x, F::one()); });
  if (name == "Sigmoid") return apply(F::sigmoid);
  if (name == "Tanh") return apply([](T x) { return A::tanh(x); });
  if (name == "HardSwish") return apply(F::hard_swish);
  if (name == "Clip")
    return apply([l = A::from_double(alpha), h = A::from_double(beta)](T x) { return F::clip(x, l, h); });
  const T a = A::from_double(alpha);
  if (name == "LeakyRelu") return apply([a](T x) { return F::leaky_relu(x, a); });
  if (name == "Elu") return apply([a](T x) { return F::elu(x, a); });
  if (name == "HardSigmoid")
    return apply([a, b = A::from_double(beta)](T x) { return F::hard_sigmoid(x, a, b); });
  throw TypeError(node.info().name + ": expected the name of an activation, got \"" + name + "\"");
}

RLOPT_INSTANTIATE(elementwise_rows)
template void activate<RealAlgebra>(const Node&, std::vector<double>&);
template void activate<FieldAlgebra>(const Node&, std::vector<int64_t>&);
template void activate<IntAlgebra>(const Node&, std::vector<int64_t>&);

}  // namespace rlopt
