// Reference: broadcasting operators on two or more operands.
#include "tools/reference/functions.h"
#include "tools/reference/kernels.h"

namespace rlopt {

namespace {

/// out = function(a, b), broadcast; `out` may not be `a` or `b`.
template <class T, class R, class F>
void zip(const RefTensor& a, const RefTensor& b, const Sizes& shape, std::vector<R>& out, F function) {
  const auto &left = data<T>(a), &right = data<T>(b);
  out.resize(static_cast<size_t>(count(shape)));
  if (a.dims == b.dims && a.dims == shape) {
    for (size_t i = 0; i < out.size(); ++i) out[i] = function(left[i], right[i]);
    return;
  }
  for_each_index<2>(
      shape, {broadcast_strides(a.dims, shape), broadcast_strides(b.dims, shape)},
      [&](int64_t i, const std::array<int64_t, 2>& at) { out[i] = function(left[at[0]], right[at[1]]); });
}

/// For two operands.
template <class A, auto kFunction>
void binary(const Call& call) {
  using T = typename A::T;
  zip<T>(*call.in[0], *call.in[1], call.out[0].dims, data<T>(call.out[0]),
         [](T a, T b) { return kFunction(a, b); });
}

/// Operands of the algebra, bool result.
template <class A, auto kFunction>
void compare(const Call& call) {
  using T = typename A::T;
  zip<T>(*call.in[0], *call.in[1], call.out[0].dims, call.out[0].ints,
         [](T a, T b) { return kFunction(a, b) ? 1 : 0; });
}

/// Left fold over all operands.
template <class A, auto kFunction>
void fold(const Call& call) {
  using T = typename A::T;
  RefTensor& out = call.out[0];
  RefTensor sum = *call.in[0];
  for (size_t i = 1; i < call.in.size(); ++i) {
    RefTensor next;
    next.dims = out.dims;
    zip<T>(sum, *call.in[i], out.dims, data<T>(next), [](T a, T b) { return kFunction(a, b); });
    sum = std::move(next);
  }
  data<T>(out) = std::move(data<T>(sum));
}

template <class A>
void mean(const Call& call) {
  fold<A, A::add>(call);
  const Divider<A> by_count(A::from_int(static_cast<int64_t>(call.in.size())));
  for (auto& value : data<typename A::T>(call.out[0])) value = by_count(value);
}

template <class A>
void remainder(const Call& call) {
  using T = typename A::T;
  return call.node.attr_int("fmod") != 0 ? binary<A, [](T a, T b) { return A::mod(a, b, true); }>(call)
                                         : binary<A, [](T a, T b) { return A::mod(a, b, false); }>(call);
}

/// `condition` is bool; the algebra is that of the other operands.
template <class A>
void where(const Call& call) {
  using T = typename A::T;
  const Sizes& shape = call.out[0].dims;
  const auto& condition = call.in[0]->ints;
  const auto &yes = call.operand<T>(1), &no = call.operand<T>(2);
  auto& out = call.result<T>();
  const auto strides = [&](size_t i) { return broadcast_strides(call.in[i]->dims, shape); };
  for_each_index<3>(shape, {strides(0), strides(1), strides(2)},
                    [&](int64_t i, const std::array<int64_t, 3>& at) {
                      out[i] = condition[at[0]] != 0 ? yes[at[1]] : no[at[2]];
                    });
}

int64_t bit_and(int64_t a, int64_t b) { return a & b; }
int64_t bit_or(int64_t a, int64_t b) { return a | b; }
int64_t bit_xor(int64_t a, int64_t b) { return a ^ b; }

/// For integers and bool only.
template <class A, auto kFunction>
constexpr Kernel bits = std::is_same_v<A, IntAlgebra> ? binary<IntAlgebra, kFunction> : nullptr;

}  // namespace

/// One row per operator.
template <class A>
std::vector<KernelRow> broadcast_rows() {
  using T = typename A::T;
  using F = Functions<A>;
  return {
      {Op::Add, binary<A, A::add>},
      {Op::Sub, binary<A, A::sub>},
      {Op::Mul, binary<A, A::mul>},
      {Op::Div, binary<A, A::div>},
      {Op::Pow, binary<A, A::pow>},
      {Op::Mod, remainder<A>},
      {Op::PRelu, binary<A, F::leaky_relu>},
      {Op::And, bits<A, bit_and>},
      {Op::Or, bits<A, bit_or>},
      {Op::Xor, bits<A, bit_xor>},
      {Op::BitwiseAnd, bits<A, bit_and>},
      {Op::BitwiseOr, bits<A, bit_or>},
      {Op::BitwiseXor, bits<A, bit_xor>},
      {Op::Equal, compare<A, [](T a, T b) { return a == b; }>},
      {Op::Less, compare<A, A::less>},
      {Op::LessOrEqual, compare<A, [](T a, T b) { return A::less(a, b) || a == b; }>},
      {Op::Greater, compare<A, [](T a, T b) { return A::less(b, a); }>},
      {Op::GreaterOrEqual, compare<A, [](T a, T b) { return A::less(b, a) || a == b; }>},
      {Op::Max, fold<A, F::max>},
      {Op::Min, fold<A, F::min>},
      {Op::Sum, fold<A, A::add>},
      {Op::Mean, mean<A>},
      {Op::Where, where<A>},
  };
}

RLOPT_INSTANTIATE(broadcast_rows)

}  // namespace rlopt
