// Reference: reductions, searches along an axis, running sums.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "tools/reference/functions.h"
#include "tools/reference/kernels.h"

namespace rlopt {

namespace {

/// Offsets of the elements that one output element reduces, and the start of each output element.
struct Reduction {
  Sizes starts;
  Sizes members;
};

Reduction make_reduction(const Call& call) {
  const Sizes& dims = call.in[0]->dims;
  const Sizes strides = row_major_strides(dims);
  std::vector<bool> is_reduced(dims.size(), call.node.attr_ints("axes").empty());
  for (const int64_t axis : call.node.attr_ints("axes")) {
    is_reduced[static_cast<size_t>(axis < 0 ? axis + static_cast<int64_t>(dims.size()) : axis)] = true;
  }
  std::array<Sizes, 2> parts;
  std::array<Sizes, 2> part_strides;
  for (size_t i = 0; i < dims.size(); ++i) {
    parts[is_reduced[i] ? 1 : 0].push_back(dims[i]);
    part_strides[is_reduced[i] ? 1 : 0].push_back(strides[i]);
  }
  return {all_offsets(parts[0], part_strides[0]), all_offsets(parts[1], part_strides[1])};
}

/// out = finish(fold of `step` from `start`, number of members).
template <class A, class Step, class Finish>
bool reduce(const Call& call, typename A::T start, Step step, Finish finish) {
  using T = typename A::T;
  const Reduction reduction = make_reduction(call);
  const auto& x = data<T>(*call.in[0]);
  auto& out = data<T>(call.out[0]);
  out.reserve(reduction.starts.size());
  for (const int64_t first : reduction.starts) {
    T value = start;
    for (const int64_t member : reduction.members)
      value = step(value, x[static_cast<size_t>(first + member)]);
    out.push_back(finish(value, static_cast<int64_t>(reduction.members.size())));
  }
  return true;
}

template <class A>
bool log_sum_exp(const Call& call) {
  using T = typename A::T;
  const Reduction reduction = make_reduction(call);
  const auto& x = data<T>(*call.in[0]);
  for (const int64_t first : reduction.starts) {
    T most = A::from_int(0);
    if constexpr (A::kIsReal) {
      most = A::lowest();
      for (const int64_t member : reduction.members) {
        most = Functions<A>::max(most, x[static_cast<size_t>(first + member)]);
      }
      if (std::isinf(most)) most = 0;
    }
    T sum = A::from_int(0);
    for (const int64_t member : reduction.members) {
      sum = A::add(sum, A::exp(A::sub(x[static_cast<size_t>(first + member)], most)));
    }
    data<T>(call.out[0]).push_back(A::add(A::log(sum), most));
  }
  return true;
}

/// The lines along the axis attribute: offsets of their starts, number of elements, stride.
struct Lines {
  Sizes starts;
  int64_t n = 0;
  int64_t stride = 1;
};

Lines make_lines(const Call& call) {
  Sizes dims = call.in[0]->dims;
  const size_t axis = call.axis(dims.size());
  const Sizes strides = row_major_strides(dims);
  Lines lines;
  lines.n = dims[axis];
  lines.stride = strides[axis];
  dims[axis] = 1;
  lines.starts = all_offsets(dims, strides);
  return lines;
}

template <class A>
bool arg_reduce(const Call& call) {
  using T = typename A::T;
  const Lines lines = make_lines(call);
  const bool is_max = call.node.op == Op::ArgMax;
  const bool take_last = call.node.attr_int("select_last_index") != 0;
  const auto& x = data<T>(*call.in[0]);
  for (const int64_t start : lines.starts) {
    int64_t best = 0;
    for (int64_t i = 1; i < lines.n; ++i) {
      const T value = x[static_cast<size_t>(start + i * lines.stride)];
      const T record = x[static_cast<size_t>(start + best * lines.stride)];
      const bool is_better = is_max ? A::less(record, value) : A::less(value, record);
      if (is_better || (take_last && value == record)) best = i;
    }
    call.out[0].ints.push_back(best);
  }
  return true;
}

/// Sorted; ties by lower index.
template <class A>
bool top_k(const Call& call) {
  using T = typename A::T;
  const Lines lines = make_lines(call);
  const int64_t k = call.node.attr_int("k");
  const bool largest = call.node.attr_int("largest") != 0;
  const auto& x = data<T>(*call.in[0]);
  auto& values = data<T>(call.out[0]);
  auto& indices = call.out[1].ints;
  values.resize(static_cast<size_t>(count(call.out[0].dims)));
  indices.resize(values.size());
  Sizes out_dims = call.out[0].dims;
  out_dims[call.axis(out_dims.size())] = 1;
  const Sizes out_starts = all_offsets(out_dims, row_major_strides(call.out[0].dims));
  Sizes order(static_cast<size_t>(lines.n));
  for (size_t line = 0; k > 0 && line < lines.starts.size(); ++line) {
    const auto at = [&](int64_t i) { return x[static_cast<size_t>(lines.starts[line] + i * lines.stride)]; };
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
      return largest ? A::less(at(b), at(a)) : A::less(at(a), at(b));
    });
    for (int64_t i = 0; i < k; ++i) {
      const auto to = static_cast<size_t>(out_starts[line] + i * lines.stride);
      values[to] = at(order[static_cast<size_t>(i)]);
      indices[to] = order[static_cast<size_t>(i)];
    }
  }
  return true;
}

template <class A>
bool cum_sum(const Call& call) {
  using T = typename A::T;
  const Lines lines = make_lines(call);
  const bool is_exclusive = call.node.attr_int("exclusive") != 0;
  const bool is_reverse = call.node.attr_int("reverse") != 0;
  const auto& x = data<T>(*call.in[0]);
  auto& out = data<T>(call.out[0]);
  out.resize(x.size());
  for (const int64_t start : lines.starts) {
    T sum = A::from_int(0);
    for (int64_t i = 0; i < lines.n; ++i) {
      const auto at = static_cast<size_t>(start + (is_reverse ? lines.n - 1 - i : i) * lines.stride);
      const T before = sum;
      sum = A::add(sum, x[at]);
      out[at] = is_exclusive ? before : sum;
    }
  }
  return true;
}

}  // namespace

template <class A>
bool eval_reduction(const Call& call) {
  using T = typename A::T;
  using F = Functions<A>;
  const auto same = [](T value, int64_t) { return value; };
  const auto add = [](T sum, T x) { return A::add(sum, x); };
  const auto add_square = [](T sum, T x) { return A::add(sum, A::mul(x, x)); };
  const T zero = A::from_int(0);
  switch (call.node.op) {
    case Op::ReduceSum:
      return reduce<A>(call, zero, add, same);
    case Op::ReduceMean:
      return reduce<A>(call, zero, add, [](T sum, int64_t n) { return A::div(sum, A::from_int(n)); });
    case Op::ReduceMax:
      return reduce<A>(call, A::lowest(), F::max, same);
    case Op::ReduceMin:
      return reduce<A>(call, A::highest(), F::min, same);
    case Op::ReduceProd:
      return reduce<A>(call, A::from_int(1), [](T p, T x) { return A::mul(p, x); }, same);
    case Op::ReduceL1:
      return reduce<A>(call, zero, [](T sum, T x) { return A::add(sum, F::abs(x)); }, same);
    case Op::ReduceL2:
      return reduce<A>(call, zero, add_square, [](T sum, int64_t) { return A::sqrt(sum); });
    case Op::ReduceSumSquare:
      return reduce<A>(call, zero, add_square, same);
    case Op::ReduceLogSum:
      return reduce<A>(call, zero, add, [](T sum, int64_t) { return A::log(sum); });
    case Op::ReduceLogSumExp:
      return log_sum_exp<A>(call);
    case Op::ArgMax:
    case Op::ArgMin:
      return arg_reduce<A>(call);
    case Op::TopK:
      return top_k<A>(call);
    case Op::CumSum:
      return cum_sum<A>(call);
    default:
      return false;
  }
}

template bool eval_reduction<RealAlgebra>(const Call&);
template bool eval_reduction<FieldAlgebra>(const Call&);
template bool eval_reduction<IntAlgebra>(const Call&);

}  // namespace rlopt
