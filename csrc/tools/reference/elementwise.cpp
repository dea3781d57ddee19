// Reference: functions of one element, and the activations of fused operators.
#include "tools/reference/functions.h"
#include "tools/reference/kernels.h"

namespace rlopt {

namespace {

template <class A, class F>
bool map(const Call& call, F function) {
  const auto& x = data<typename A::T>(*call.in[0]);
  auto& y = data<typename A::T>(call.out[0]);
  y.resize(x.size());
  for (size_t i = 0; i < x.size(); ++i) y[i] = function(x[i]);
  return true;
}

/// Real operand, bool result.
template <class A, class F>
bool test(const Call& call, F predicate) {
  const auto& x = data<typename A::T>(*call.in[0]);
  auto& y = call.out[0].ints;
  y.resize(x.size());
  for (size_t i = 0; i < x.size(); ++i) y[i] = predicate(x[i]) ? 1 : 0;
  return true;
}

/// Bound of a Clip; an infinite one is no bound, also for integers.
template <class A>
typename A::T bound(double value) {
  if (std::isinf(value)) return value > 0 ? A::highest() : A::lowest();
  return A::from_double(value);
}

/// Functions of the algebra itself.
template <class A>
bool eval_plain(const Call& call) {
  using T = typename A::T;
  switch (call.node.op) {
    case Op::Acos:
      return map<A>(call, [](T x) { return A::acos(x); });
    case Op::Acosh:
      return map<A>(call, [](T x) { return A::acosh(x); });
    case Op::Asin:
      return map<A>(call, [](T x) { return A::asin(x); });
    case Op::Asinh:
      return map<A>(call, [](T x) { return A::asinh(x); });
    case Op::Atan:
      return map<A>(call, [](T x) { return A::atan(x); });
    case Op::Atanh:
      return map<A>(call, [](T x) { return A::atanh(x); });
    case Op::Ceil:
      return map<A>(call, [](T x) { return A::ceil(x); });
    case Op::Cos:
      return map<A>(call, [](T x) { return A::cos(x); });
    case Op::Cosh:
      return map<A>(call, [](T x) { return A::cosh(x); });
    case Op::Erf:
      return map<A>(call, [](T x) { return A::erf(x); });
    case Op::Exp:
      return map<A>(call, [](T x) { return A::exp(x); });
    case Op::Floor:
      return map<A>(call, [](T x) { return A::floor(x); });
    case Op::Log:
      return map<A>(call, [](T x) { return A::log(x); });
    case Op::Neg:
      return map<A>(call, [](T x) { return A::neg(x); });
    case Op::Round:
      return map<A>(call, [](T x) { return A::round(x); });
    case Op::Sin:
      return map<A>(call, [](T x) { return A::sin(x); });
    case Op::Sinh:
      return map<A>(call, [](T x) { return A::sinh(x); });
    case Op::Sqrt:
      return map<A>(call, [](T x) { return A::sqrt(x); });
    case Op::Tan:
      return map<A>(call, [](T x) { return A::tan(x); });
    case Op::Tanh:
      return map<A>(call, [](T x) { return A::tanh(x); });
    default:
      return false;
  }
}

template <class A>
bool eval_predicate(const Call& call) {
  using T = typename A::T;
  const Node& node = call.node;
  if (node.op == Op::IsNaN) return test<A>(call, [](T x) { return A::is_nan(x); });
  const bool negative = node.attr_int("detect_negative") != 0;
  const bool positive = node.attr_int("detect_positive") != 0;
  return test<A>(call, [=](T x) {
    return A::is_infinite(x) && (A::less(x, Functions<A>::zero()) ? negative : positive);
  });
}

}  // namespace

template <class A>
bool eval_elementwise(const Call& call) {
  using T = typename A::T;
  using F = Functions<A>;
  const Node& node = call.node;
  const auto number = [&node](const char* name) { return A::from_double(node.attr_float(name)); };
  switch (node.op) {
    case Op::Identity:
      return map<A>(call, [](T x) { return x; });
    case Op::Abs:
      return map<A>(call, F::abs);
    case Op::Sign:
      return map<A>(call, F::sign);
    case Op::Relu:
      return map<A>(call, F::relu);
    case Op::Reciprocal:
      return map<A>(call, F::reciprocal);
    case Op::Sigmoid:
      return map<A>(call, F::sigmoid);
    case Op::Softplus:
      return map<A>(call, F::softplus);
    case Op::Softsign:
      return map<A>(call, F::softsign);
    case Op::Mish:
      return map<A>(call, F::mish);
    case Op::HardSwish:
      return map<A>(call, F::hard_swish);
    case Op::Gelu:
      return map<A>(call, node.attr_string("approximate") == "tanh" ? F::gelu_tanh : F::gelu);
    case Op::Clip: {
      const T low = bound<A>(node.attr_float("min"));
      const T high = bound<A>(node.attr_float("max"));
      return map<A>(call, [=](T x) { return F::clip(x, low, high); });
    }
    case Op::LeakyRelu:
      return map<A>(call, [a = number("alpha")](T x) { return F::leaky_relu(x, a); });
    case Op::ThresholdedRelu:
      return map<A>(call, [a = number("alpha")](T x) { return F::thresholded_relu(x, a); });
    case Op::Elu:
      return map<A>(call, [a = number("alpha")](T x) { return F::elu(x, a); });
    case Op::Celu:
      return map<A>(call, [a = number("alpha")](T x) { return F::celu(x, a); });
    case Op::Selu:
      return map<A>(call, [a = number("alpha"), g = number("gamma")](T x) { return F::selu(x, a, g); });
    case Op::Swish:
      return map<A>(call, [a = number("alpha")](T x) { return F::swish(x, a); });
    case Op::HardSigmoid:
      return map<A>(call,
                    [a = number("alpha"), b = number("beta")](T x) { return F::hard_sigmoid(x, a, b); });
    case Op::Shrink:
      return map<A>(call, [l = number("lambd"), b = number("bias")](T x) {
        return A::less(l, x) ? A::sub(x, b) : A::less(x, A::neg(l)) ? A::add(x, b) : F::zero();
      });
    case Op::IsInf:
    case Op::IsNaN:
      return eval_predicate<A>(call);
    case Op::Not:
      return test<A>(call, [](T x) { return x == T(0); });
    case Op::BitwiseNot:
      if constexpr (std::is_same_v<A, IntAlgebra>) return map<A>(call, [](T x) { return ~x; });
      return false;
    default:
      return eval_plain<A>(call);
  }
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
    return apply([l = bound<A>(alpha), h = bound<A>(beta)](T x) { return F::clip(x, l, h); });
  const T a = A::from_double(alpha);
  if (name == "LeakyRelu") return apply([a](T x) { return F::leaky_relu(x, a); });
  if (name == "Elu") return apply([a](T x) { return F::elu(x, a); });
  if (name == "HardSigmoid")
    return apply([a, b = A::from_double(beta)](T x) { return F::hard_sigmoid(x, a, b); });
  throw TypeError(node.info().name + ": expected the name of an activation, got \"" + name + "\"");
}

template bool eval_elementwise<RealAlgebra>(const Call&);
template bool eval_elementwise<FieldAlgebra>(const Call&);
template bool eval_elementwise<IntAlgebra>(const Call&);
template void activate<RealAlgebra>(const Node&, std::vector<double>&);
template void activate<FieldAlgebra>(const Node&, std::vector<int64_t>&);
template void activate<IntAlgebra>(const Node&, std::vector<int64_t>&);

}  // namespace rlopt
