// Reference: reductions and running sums.
#include <algorithm>
#include <cmath>

#include "tools/reference/functions.h"
#include "tools/reference/kernels.h"

namespace rlopt {

namespace {

/// Offsets of the elements that one output element reduces, and the start of each output element.
struct Reduction {
  Sizes starts;
  Sizes members;
};

/// Along the axes of the attribute (all for none); a global pool reduces the spatial axes.
Reduction make_reduction(const Call& call) {
  const Sizes& dims = call.in[0]->dims;
  const Sizes strides = row_major_strides(dims);
  const bool is_pool = call.node.info().infer == InferRule::GlobalPool;
  std::vector<bool> is_reduced(dims.size(), is_pool || call.node.attr_ints("axes").empty());
  for (size_t i = 0; is_pool && i < 2; ++i) is_reduced[i] = false;
  for (const int64_t axis : is_pool ? Ints{} : call.node.attr_ints("axes")) {
    is_reduced[axis < 0 ? axis + static_cast<int64_t>(dims.size()) : axis] = true;
  }
  std::array<Sizes, 2> parts, part_strides;
  for (size_t i = 0; i < dims.size(); ++i) {
    parts[is_reduced[i]].push_back(dims[i]);
    part_strides[is_reduced[i]].push_back(strides[i]);
  }
  return {all_offsets(parts[0], part_strides[0]), all_offsets(parts[1], part_strides[1])};
}

/// out = finish(fold of `step` from `start`, number of members).
template <class A, class Step, class Finish>
void reduce(const Call& call, typename A::T start, Step step, Finish finish) {
  using T = typename A::T;
  const Reduction reduction = make_reduction(call);
  const auto& x = call.operand<T>();
  auto& out = data<T>(call.out[0]);
  out.reserve(reduction.starts.size());
  for (const int64_t first : reduction.starts) {
    T value = start;
    for (const int64_t member : reduction.members) value = step(value, x[first + member]);
    out.push_back(finish(value, static_cast<int64_t>(reduction.members.size())));
  }
}

/// Folds all members, beginning with 0.
template <class A, auto kStep, auto kFinish>
void fold(const Call& call) {
  reduce<A>(call, A::from_int(0), kStep, kFinish);
}

template <class A>
void log_sum_exp(const Call& call) {
  using T = typename A::T;
  const Reduction reduction = make_reduction(call);
  const auto& x = call.operand<T>();
  for (const int64_t first : reduction.starts) {
    T most = A::from_int(0);
    if constexpr (A::kIsReal) {
      most = A::lowest();
      for (const int64_t member : reduction.members) most = Functions<A>::max(most, x[first + member]);
      if (std::isinf(most)) most = 0;
    }
    T sum = A::from_int(0);
    for (const int64_t member : reduction.members) sum = A::add(sum, A::exp(A::sub(x[first + member], most)));
    data<T>(call.out[0]).push_back(A::add(A::log(sum), most));
  }
}

template <class A>
void cum_sum(const Call& call) {
  using T = typename A::T;
  const Rows rows(call.in[0]->dims, call.axis(call.in[0]->dims.size()));
  const bool is_exclusive = call.node.attr_int("exclusive") != 0;
  const bool is_reverse = call.node.attr_int("reverse") != 0;
  const auto& x = call.operand<T>();
  auto& out = call.result<T>();
  for (int64_t row = 0; row < rows.count(); ++row) {
    T sum = A::from_int(0);
    for (int64_t i = 0; i < rows.n; ++i) {
      const int64_t at = rows.start(row) + (is_reverse ? rows.n - 1 - i : i) * rows.inner;
      const T before = sum;
      sum = A::add(sum, x[at]);
      out[at] = is_exclusive ? before : sum;
    }
  }
}

template <class A>
void largest(const Call& call) {
  reduce<A>(call, A::lowest(), Functions<A>::max, [](typename A::T most, int64_t) { return most; });
}

template <class A>
void smallest(const Call& call) {
  reduce<A>(call, A::highest(), Functions<A>::min, [](typename A::T least, int64_t) { return least; });
}

template <class A>
void product(const Call& call) {
  reduce<A>(call, A::from_int(1), A::mul, [](typename A::T all, int64_t) { return all; });
}

}  // namespace

template <class A>
std::vector<KernelRow> reduction_rows() {
  using T = typename A::T;
  constexpr auto same = [](T value, int64_t) { return value; };
  constexpr auto mean = [](T sum, int64_t n) { return A::div(sum, A::from_int(n)); };
  constexpr auto root = [](T sum, int64_t) { return A::sqrt(sum); };
  constexpr auto log = [](T sum, int64_t) { return A::log(sum); };
  constexpr auto add_size = [](T sum, T x) { return A::add(sum, Functions<A>::abs(x)); };
  constexpr auto add_square = [](T sum, T x) { return A::add(sum, A::mul(x, x)); };
  return {{Op::ReduceSum, fold<A, A::add, same>},
          {Op::ReduceMean, fold<A, A::add, mean>},
          {Op::GlobalAveragePool, fold<A, A::add, mean>},
          {Op::ReduceMax, largest<A>},
          {Op::GlobalMaxPool, largest<A>},
          {Op::ReduceMin, smallest<A>},
          {Op::ReduceProd, product<A>},
          {Op::ReduceL1, fold<A, add_size, same>},
          {Op::ReduceL2, fold<A, add_square, root>},
          {Op::ReduceSumSquare, fold<A, add_square, same>},
          {Op::ReduceLogSum, fold<A, A::add, log>},
          {Op::ReduceLogSumExp, log_sum_exp<A>},
          {Op::CumSum, cum_sum<A>}};
}

RLOPT_INSTANTIATE(reduction_rows)

}  // namespace rlopt
