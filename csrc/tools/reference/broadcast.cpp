// Reference: operators on two or more operands that broadcast.
#include "tools/reference/functions.h"
#include "tools/reference/kernels.h"

namespace rlopt {

namespace {

/// out = function(a, b), broadcast; `out` may not be `a` or `b`.
template <class T, class R, class F>
void zip(const RefTensor& a, const RefTensor& b, const Sizes& shape, std::vector<R>& out, F function) {
  const auto& left = data<T>(a);
  const auto& right = data<T>(b);
  out.resize(static_cast<size_t>(count(shape)));
  if (a.dims == b.dims && a.dims == shape) {
    for (size_t i = 0; i < out.size(); ++i) out[i] = function(left[i], right[i]);
    return;
  }
  for_each_index<2>(shape, {broadcast_strides(a.dims, shape), broadcast_strides(b.dims, shape)},
                    [&](int64_t i, const std::array<int64_t, 2>& at) {
                      out[static_cast<size_t>(i)] =
                          function(left[static_cast<size_t>(at[0])], right[static_cast<size_t>(at[1])]);
                    });
}

/// Left fold over all operands.
template <class A, class F>
bool fold(const Call& call, F function) {
  using T = typename A::T;
  RefTensor& out = call.out[0];
  RefTensor sum = *call.in[0];
  for (size_t i = 1; i < call.in.size(); ++i) {
    RefTensor next;
    next.dims = out.dims;
    zip<T>(sum, *call.in[i], out.dims, data<T>(next), function);
    sum = std::move(next);
  }
  data<T>(out) = std::move(data<T>(sum));
  return true;
}

template <class A, class F>
bool binary(const Call& call, F function) {
  using T = typename A::T;
  zip<T>(*call.in[0], *call.in[1], call.out[0].dims, data<T>(call.out[0]), function);
  return true;
}

/// Operands of the algebra, bool result.
template <class A, class F>
bool compare(const Call& call, F function) {
  zip<typename A::T>(*call.in[0], *call.in[1], call.out[0].dims, call.out[0].ints, function);
  return true;
}

/// `condition` is bool; the algebra is that of the choices.
template <class A>
bool where(const Call& call) {
  using T = typename A::T;
  const Sizes& shape = call.out[0].dims;
  const auto& condition = call.in[0]->ints;
  const auto& yes = data<T>(*call.in[1]);
  const auto& no = data<T>(*call.in[2]);
  auto& out = data<T>(call.out[0]);
  out.resize(static_cast<size_t>(count(shape)));
  const auto strides = [&](size_t i) { return broadcast_strides(call.in[i]->dims, shape); };
  for_each_index<3>(
      shape, {strides(0), strides(1), strides(2)}, [&](int64_t i, const std::array<int64_t, 3>& at) {
        const bool take = condition[static_cast<size_t>(at[0])] != 0;
        out[static_cast<size_t>(i)] = take ? yes[static_cast<size_t>(at[1])] : no[static_cast<size_t>(at[2])];
      });
  return true;
}

/// Shifts of at least the width give 0; operands are unsigned.
int64_t shift(int64_t value, int64_t bits, bool left, int width) {
  if (bits < 0 || bits >= width) return 0;
  const auto number = static_cast<uint64_t>(value);
  return static_cast<int64_t>(left ? number << bits : number >> bits);
}

bool eval_bits(const Call& call) {
  using A = IntAlgebra;
  using T = int64_t;
  switch (call.node.op) {
    case Op::BitwiseAnd:
    case Op::And:
      return binary<A>(call, [](T a, T b) { return a & b; });
    case Op::BitwiseOr:
    case Op::Or:
      return binary<A>(call, [](T a, T b) { return a | b; });
    case Op::BitwiseXor:
    case Op::Xor:
      return binary<A>(call, [](T a, T b) { return a ^ b; });
    case Op::BitShift: {
      const bool left = call.node.attr_string("direction") == "LEFT";
      const int width = 8 * dtype_bytes(call.in_dtypes[0]);
      return binary<A>(call, [=](T a, T b) { return shift(a, b, left, width); });
    }
    default:
      return false;
  }
}

}  // namespace

template <class A>
bool eval_broadcast(const Call& call) {
  using T = typename A::T;
  using F = Functions<A>;
  switch (call.node.op) {
    case Op::Add:
      return binary<A>(call, [](T a, T b) { return A::add(a, b); });
    case Op::Sub:
      return binary<A>(call, [](T a, T b) { return A::sub(a, b); });
    case Op::Mul:
      return binary<A>(call, [](T a, T b) { return A::mul(a, b); });
    case Op::Div:
      return binary<A>(call, [](T a, T b) { return A::div(a, b); });
    case Op::Pow:
      return binary<A>(call, [](T a, T b) { return A::pow(a, b); });
    case Op::Mod: {
      const bool truncated = call.node.attr_int("fmod") != 0;
      return binary<A>(call, [=](T a, T b) { return A::mod(a, b, truncated); });
    }
    case Op::PRelu:
      return binary<A>(call, [](T a, T b) { return F::leaky_relu(a, b); });
    case Op::Equal:
      return compare<A>(call, [](T a, T b) { return a == b ? 1 : 0; });
    case Op::Less:
      return compare<A>(call, [](T a, T b) { return A::less(a, b) ? 1 : 0; });
    case Op::LessOrEqual:
      return compare<A>(call, [](T a, T b) { return A::less(a, b) || a == b ? 1 : 0; });
    case Op::Greater:
      return compare<A>(call, [](T a, T b) { return A::less(b, a) ? 1 : 0; });
    case Op::GreaterOrEqual:
      return compare<A>(call, [](T a, T b) { return A::less(b, a) || a == b ? 1 : 0; });
    case Op::Max:
      return fold<A>(call, F::max);
    case Op::Min:
      return fold<A>(call, F::min);
    case Op::Sum:
      return fold<A>(call, [](T a, T b) { return A::add(a, b); });
    case Op::Mean: {
      fold<A>(call, [](T a, T b) { return A::add(a, b); });
      const Divider<A> by_count(A::from_int(static_cast<int64_t>(call.in.size())));
      for (T& value : data<T>(call.out[0])) value = by_count(value);
      return true;
    }
    case Op::Where:
      return where<A>(call);
    default:
      if constexpr (std::is_same_v<A, IntAlgebra>) return eval_bits(call);
      return false;
  }
}

template bool eval_broadcast<RealAlgebra>(const Call&);
template bool eval_broadcast<FieldAlgebra>(const Call&);
template bool eval_broadcast<IntAlgebra>(const Call&);

}  // namespace rlopt
