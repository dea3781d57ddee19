// Internals of the reference interpreter: one call of an operator, the tables of kernels, and index helpers.
#pragma once

#include <array>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "infer/rules.h"
#include "tools/reference/algebra.h"
#include "tools/reference/reference.h"

namespace rlopt {

using Sizes = std::vector<int64_t>;

Sizes row_major_strides(const Sizes& dims);
int64_t count(const Sizes& dims);
/// Strides that read `dims` as if broadcast to `shape`: 0 along broadcast axes.
Sizes broadcast_strides(const Sizes& dims, const Sizes& shape);

/// During evaluation, integers and bool are in `ints` in every arithmetic; only reals are in `doubles`.
template <class T>
const std::vector<T>& data(const RefTensor& tensor) {
  if constexpr (std::is_same_v<T, double>) {
    return tensor.doubles;
  } else {
    return tensor.ints;
  }
}
template <class T>
std::vector<T>& data(RefTensor& tensor) {
  return const_cast<std::vector<T>&>(data<T>(static_cast<const RefTensor&>(tensor)));
}

/// A node, its operands and its results (dims set, data to be filled).
struct Call {
  const Node& node;
  std::vector<const RefTensor*> in;  // null: omitted
  std::vector<DType> in_dtypes;
  std::vector<RefTensor>& out;

  bool has(size_t i) const { return i < in.size() && in[i] != nullptr; }
  template <class T>
  const std::vector<T>& operand(size_t i = 0) const {
    return data<T>(*in[i]);
  }
  /// The first result, with as many elements as its dims say.
  template <class T>
  std::vector<T>& result() const {
    std::vector<T>& elements = data<T>(out[0]);
    elements.resize(static_cast<size_t>(count(out[0].dims)));
    return elements;
  }
  /// `axis` attribute counted from the front.
  size_t axis(size_t rank) const {
    const int64_t axis = node.attr_int("axis");
    return static_cast<size_t>(axis < 0 ? axis + static_cast<int64_t>(rank) : axis);
  }
};

/// Evaluates one operator over an algebra: that of the first operand, or of the result if there is none.
using Kernel = void (*)(const Call& call);
/// An operator and its kernel; null if the algebra does not support it.
using KernelRow = std::pair<Op, Kernel>;

/// The kernels over `A` of each group of operators.
template <class A>
std::vector<KernelRow> elementwise_rows();
template <class A>
std::vector<KernelRow> broadcast_rows();
template <class A>
std::vector<KernelRow> contraction_rows();
template <class A>
std::vector<KernelRow> window_rows();
template <class A>
std::vector<KernelRow> attention_rows();
template <class A>
std::vector<KernelRow> normalisation_rows();
template <class A>
std::vector<KernelRow> reduction_rows();
template <class A>
std::vector<KernelRow> movement_rows();

/// At the end of each group's file.
#define RLOPT_INSTANTIATE(rows)                         \
  template std::vector<KernelRow> rows<RealAlgebra>();  \
  template std::vector<KernelRow> rows<FieldAlgebra>(); \
  template std::vector<KernelRow> rows<IntAlgebra>();

/// Applies the activation to `data` in place (fused operators).
template <class A>
void activate(const Node& node, std::vector<typename A::T>& data);
/// Softmax of `n` elements that are `stride` apart. A row that is all -inf gives zeros if `empty_is_zero`,
/// otherwise 0 / 0.
template <class A>
void softmax_row(typename A::T* row, int64_t n, int64_t stride, bool empty_is_zero);

/// Calls visit(i, offsets) for i = 0, 1, ... over `dims` in row-major order, where offsets[k] is the position
/// under strides[k]. No allocation per step.
template <size_t N, class Visit>
void for_each_index(const Sizes& dims, const std::array<Sizes, N>& strides, Visit visit) {
  const int64_t total = count(dims);
  const auto rank = static_cast<int>(dims.size());
  Sizes index(dims.size(), 0);
  std::array<int64_t, N> offsets{};
  for (int64_t i = 0; i < total; ++i) {
    visit(i, offsets);
    for (int d = rank - 1; d >= 0; --d) {
      const auto axis = static_cast<size_t>(d);
      for (size_t k = 0; k < N; ++k) offsets[k] += strides[k][axis];
      if (++index[axis] < dims[axis]) break;
      for (size_t k = 0; k < N; ++k) offsets[k] -= strides[k][axis] * dims[axis];
      index[axis] = 0;
    }
  }
}

/// Offsets of all positions of `dims` under `strides`, row-major.
Sizes all_offsets(const Sizes& dims, const Sizes& strides);

/// A tensor as [outer, n, inner]: one axis in the middle.
struct Rows {
  int64_t outer = 1, n = 1, inner = 1;

  Rows(const Sizes& dims, size_t axis) {
    for (size_t i = 0; i < dims.size(); ++i) (i < axis ? outer : i == axis ? n : inner) *= dims[i];
  }
  /// The row `at`, counted in row-major order of the other axes, begins here; its elements are `inner` apart.
  int64_t start(int64_t at) const { return at / inner * n * inner + at % inner; }
  int64_t count() const { return outer * inner; }
};

}  // namespace rlopt
