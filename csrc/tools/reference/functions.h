// Scalar functions built from an algebra, shared by operators and fused activations.
#pragma once

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "tools/reference/algebra.h"

namespace rlopt {

/// Repeated division by one number: over the field computing the inverse is expensive.
template <class A>
class Divider {
 public:
  using T = typename A::T;

  explicit Divider(T divisor) : divisor_(divisor) {
    if constexpr (std::is_same_v<A, FieldAlgebra>) divisor_ = A::inverse(divisor);
  }
  T operator()(T x) const {
    if constexpr (std::is_same_v<A, FieldAlgebra>) {
      return A::mul(x, divisor_);
    } else {
      return A::div(x, divisor_);
    }
  }

 private:
  T divisor_;
};

/// Uses the algebra's own functions, so that also over the field an operator equals its decomposition.
template <class A>
struct Functions {
  using T = typename A::T;

  static T number(double value) { return A::from_double(value); }
  static T zero() { return A::from_int(0); }
  static T one() { return A::from_int(1); }
  static T max(T a, T b) {
    if (A::is_nan(a)) return a;
    return A::less(a, b) || A::is_nan(b) ? b : a;
  }
  static T min(T a, T b) {
    if (A::is_nan(a)) return a;
    return A::less(b, a) || A::is_nan(b) ? b : a;
  }
  static T abs(T x) { return A::less(x, zero()) ? A::neg(x) : A::add(x, zero()); }  // -0 becomes +0
  static T sign(T x) {
    if (A::is_nan(x)) return x;
    return A::less(x, zero()) ? A::neg(one()) : A::less(zero(), x) ? one() : zero();
  }
  static T reciprocal(T x) { return A::div(one(), x); }
  static T relu(T x) { return max(x, zero()); }
  static T clip(T x, T low, T high) { return min(max(x, low), high); }
  static T leaky_relu(T x, T slope) { return A::less(x, zero()) ? A::mul(slope, x) : x; }
  static T thresholded_relu(T x, T threshold) { return A::less(threshold, x) ? x : zero(); }
  static T elu(T x, T alpha) { return A::less(x, zero()) ? A::mul(alpha, A::sub(A::exp(x), one())) : x; }
  static T celu(T x, T alpha) {
    if (!A::less(x, zero())) return x;
    return A::mul(alpha, A::sub(A::exp(A::div(x, alpha)), one()));
  }
  static T selu(T x, T alpha, T gamma) { return A::mul(gamma, elu(x, alpha)); }
  static T sigmoid(T x) { return A::div(one(), A::add(one(), A::exp(A::neg(x)))); }
  static T swish(T x, T alpha) { return A::mul(x, sigmoid(A::mul(alpha, x))); }
  static T hard_sigmoid(T x, T alpha, T beta) { return clip(A::add(A::mul(alpha, x), beta), zero(), one()); }
  static T hard_swish(T x) {
    const T six = A::from_int(6);
    return A::div(A::mul(x, clip(A::add(x, A::from_int(3)), zero(), six)), six);
  }
  static T softplus(T x) {
    if constexpr (A::kIsReal) {
      return std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x)));
    } else {
      return A::log(A::add(one(), A::exp(x)));
    }
  }
  static T mish(T x) { return A::mul(x, A::tanh(softplus(x))); }
  static T softsign(T x) { return A::div(x, A::add(one(), abs(x))); }
  static T gelu(T x) {
    const T inner = A::erf(A::mul(x, number(0.70710678118654752440)));
    return A::mul(A::mul(number(0.5), x), A::add(one(), inner));
  }
  static T gelu_tanh(T x) {
    const T cube = A::mul(number(0.044715), A::mul(x, A::mul(x, x)));
    const T inner = A::tanh(A::mul(number(0.79788456080286535588), A::add(x, cube)));
    return A::mul(A::mul(number(0.5), x), A::add(one(), inner));
  }
};

}  // namespace rlopt
