// Reference: normalisations, written as the chain of sums, quotients and roots that define them.
#include <algorithm>
#include <cmath>

#include "tools/reference/functions.h"
#include "tools/reference/kernels.h"

namespace rlopt {

namespace {

/// Everything from `axis` on is one row.
Rows trailing_rows(const Sizes& dims, size_t axis) {
  Rows rows(dims, axis);
  rows.n *= rows.inner;
  rows.inner = 1;
  return rows;
}

/// row -= mean; row /= sqrt(var + epsilon). Without `centred` the mean counts as 0 (RMS).
template <class A>
void normalise_row(typename A::T* row, int64_t n, typename A::T epsilon, bool centred) {
  using T = typename A::T;
  const T length = A::from_int(n);
  if (centred) {
    T sum = A::from_int(0);
    for (int64_t i = 0; i < n; ++i) sum = A::add(sum, row[i]);
    const T mean = A::div(sum, length);
    for (int64_t i = 0; i < n; ++i) row[i] = A::sub(row[i], mean);
  }
  typename A::Accumulator squares{};
  for (int64_t i = 0; i < n; ++i) A::accumulate(squares, row[i], row[i]);
  const Divider<A> by_deviation(A::sqrt(A::add(A::div(A::finish(squares), length), epsilon)));
  for (int64_t i = 0; i < n; ++i) row[i] = by_deviation(row[i]);
}

template <class A>
void normalise_rows(std::vector<typename A::T>& values, Rows rows, double epsilon, bool centred) {
  const typename A::T eps = A::from_double(epsilon);
  for (int64_t o = 0; o < rows.outer; ++o) normalise_row<A>(values.data() + o * rows.n, rows.n, eps, centred);
}

/// result = result * scale + bias (if given), which are operands 1 and 2, broadcast by the strides.
template <class A>
void scale_and_shift(const Call& call, const Sizes& scale_strides, const Sizes& bias_strides) {
  using T = typename A::T;
  auto& out = data<T>(call.out[0]);
  const auto& scale = call.operand<T>(1);
  const auto* bias = call.has(2) ? &call.operand<T>(2) : nullptr;
  for_each_index<2>(call.out[0].dims, {scale_strides, bias_strides},
                    [&](int64_t i, const std::array<int64_t, 2>& at) {
                      out[i] = A::mul(out[i], scale[at[0]]);
                      if (bias != nullptr) out[i] = A::add(out[i], (*bias)[at[1]]);
                    });
}

Sizes channel_strides(const Sizes& dims) {
  Sizes strides(dims.size(), 0);
  strides[1] = 1;
  return strides;
}

template <class A>
void batch_norm(const Call& call) {
  using T = typename A::T;
  const Sizes& dims = call.in[0]->dims;
  const Rows rows(dims, 1);
  const auto& x = call.operand<T>();
  const T epsilon = A::from_double(call.node.attr_float("epsilon"));
  auto& out = call.result<T>();
  for (int64_t c = 0; c < rows.n; ++c) {
    const T mean = call.operand<T>(3)[c];
    const Divider<A> by_deviation(A::sqrt(A::add(call.operand<T>(4)[c], epsilon)));
    for (int64_t row = 0; row < rows.count(); ++row) {
      const int64_t at = rows.start(row) + c * rows.inner;
      out[at] = by_deviation(A::sub(x[at], mean));
    }
  }
  scale_and_shift<A>(call, channel_strides(dims), channel_strides(dims));
}

template <class A>
void layer_norm(const Call& call) {
  using T = typename A::T;
  const Sizes& dims = call.in[0]->dims;
  data<T>(call.out[0]) = call.operand<T>();
  normalise_rows<A>(data<T>(call.out[0]), trailing_rows(dims, call.axis(dims.size())),
                    call.node.attr_float("epsilon"), call.node.op == Op::LayerNormalization);
  const Sizes bias = call.has(2) ? broadcast_strides(call.in[2]->dims, dims) : Sizes(dims.size(), 0);
  scale_and_shift<A>(call, broadcast_strides(call.in[1]->dims, dims), bias);
}

template <class A>
void group_norm(const Call& call) {
  using T = typename A::T;
  const Sizes& dims = call.in[0]->dims;
  const int64_t groups =
      call.node.op == Op::InstanceNormalization ? dims[1] : call.node.attr_int("num_groups");
  Rows rows = trailing_rows(dims, 1);
  rows.outer *= groups;
  if (groups > 0) rows.n /= groups;
  data<T>(call.out[0]) = call.operand<T>();
  normalise_rows<A>(data<T>(call.out[0]), rows, call.node.attr_float("epsilon"), true);
  scale_and_shift<A>(call, channel_strides(dims), channel_strides(dims));
}

template <class A>
void log_softmax_row(typename A::T* row, int64_t n, int64_t stride) {
  using T = typename A::T;
  if constexpr (A::kIsReal) {
    T most = A::lowest();
    for (int64_t i = 0; i < n; ++i) most = Functions<A>::max(most, row[i * stride]);
    T sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += std::exp(row[i * stride] - most);
    for (int64_t i = 0; i < n; ++i) row[i * stride] -= most + std::log(sum);
  } else {
    softmax_row<A>(row, n, stride, false);
    for (int64_t i = 0; i < n; ++i) row[i * stride] = A::log(row[i * stride]);
  }
}

/// Applies function(row, n, stride) in place to a copy of the operand, along the axis attribute.
template <class A, auto kFunction>
void along_axis(const Call& call) {
  using T = typename A::T;
  const Sizes& dims = call.in[0]->dims;
  const Rows rows(dims, call.axis(dims.size()));
  auto& out = data<T>(call.out[0]);
  out = call.operand<T>();
  if (out.empty()) return;
  for (int64_t row = 0; row < rows.count(); ++row)
    kFunction(out.data() + rows.start(row), rows.n, rows.inner);
}

}  // namespace

template <class A>
void softmax_row(typename A::T* row, int64_t n, int64_t stride, bool empty_is_zero) {
  using T = typename A::T;
  T most = A::from_int(0);
  if constexpr (A::kIsReal) {
    most = A::lowest();
    for (int64_t i = 0; i < n; ++i) most = Functions<A>::max(most, row[i * stride]);
    if (empty_is_zero && most == A::lowest()) most = 0;
  }
  T sum = A::from_int(0);
  for (int64_t i = 0; i < n; ++i) {
    T& value = row[i * stride];
    // Not over the field: exp is uninterpreted, so there is no common factor to take out.
    value = A::exp(A::kIsReal ? A::sub(value, most) : value);
    sum = A::add(sum, value);
  }
  if (empty_is_zero && sum == T(0)) return;
  const Divider<A> by_sum(sum);
  for (int64_t i = 0; i < n; ++i) row[i * stride] = by_sum(row[i * stride]);
}

template <class A>
std::vector<KernelRow> normalisation_rows() {
  using T = typename A::T;
  return {
      {Op::BatchNormalization, batch_norm<A>},
      {Op::LayerNormalization, layer_norm<A>},
      {Op::RMSNormalization, layer_norm<A>},
      {Op::InstanceNormalization, group_norm<A>},
      {Op::GroupNormalization, group_norm<A>},
      {Op::Softmax, along_axis<A, [](T* row, int64_t n, int64_t s) { softmax_row<A>(row, n, s, false); }>},
      {Op::LogSoftmax, along_axis<A, log_softmax_row<A>>}};
}

template void softmax_row<RealAlgebra>(double*, int64_t, int64_t, bool);
template void softmax_row<FieldAlgebra>(int64_t*, int64_t, int64_t, bool);
template void softmax_row<IntAlgebra>(int64_t*, int64_t, int64_t, bool);
RLOPT_INSTANTIATE(normalisation_rows)

}  // namespace rlopt
