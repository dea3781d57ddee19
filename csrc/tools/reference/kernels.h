// Internals of the reference interpreter: one call of an operator, the groups of operators, and index
// helpers.
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

/// A node, its operands and its results (dims set, data to be filled).
struct Call {
  const Node& node;
  std::vector<const RefTensor*> in;  // null: omitted
  std::vector<DType> in_dtypes;
  std::vector<RefTensor>& out;

  bool has(size_t i) const { return i < in.size() && in[i] != nullptr; }
  /// `axis` attribute counted from the front.
  size_t axis(size_t rank) const {
    const int64_t axis = node.attr_int("axis");
    return static_cast<size_t>(axis < 0 ? axis + static_cast<int64_t>(rank) : axis);
  }
};

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

/// Evaluates one operator; false if the algebra does not support it.
using Kernel = bool (*)(const Call& call);
/// A row of a table: an operator and its kernel for one algebra.
using KernelRow = std::pair<Op, Kernel>;
/// The rows by operator; null for operators missing from the table.
using KernelTable = std::array<Kernel, kNumOps>;
inline KernelTable make_table(const std::vector<KernelRow>& rows) {
  KernelTable table{};
  for (const auto& [op, kernel] : rows) table[static_cast<size_t>(op)] = kernel;
  return table;
}
inline bool run_kernel(const KernelTable& table, const Call& call) {
  const Kernel kernel = table[static_cast<size_t>(call.node.op)];
  return kernel != nullptr && kernel(call);
}

/// One function per group of operators: true if it has the operator, which is then evaluated over `A` (the
/// algebra of the first operand, or of the result if there is none).
template <class A>
bool eval_elementwise(const Call& call);
template <class A>
bool eval_broadcast(const Call& call);
template <class A>
bool eval_contraction(const Call& call);
template <class A>
bool eval_convolution(const Call& call);
template <class A>
bool eval_attention(const Call& call);
template <class A>
bool eval_normalisation(const Call& call);
template <class A>
bool eval_pool(const Call& call);
template <class A>
bool eval_reduction(const Call& call);
template <class A>
bool eval_movement(const Call& call);
template <class A>
bool eval_gather(const Call& call);

/// Applies the activation to `data` in place (fused operators).
template <class A>
void activate(const Node& node, std::vector<typename A::T>& data);
/// Softmax of `n` elements that are `stride` apart. A row that is all -inf gives zeros if `empty_is_zero`,
/// otherwise 0 / 0.
template <class A>
void softmax_row(typename A::T* row, int64_t n, int64_t stride, bool empty_is_zero);

Sizes row_major_strides(const Sizes& dims);
int64_t count(const Sizes& dims);
/// Strides that read `dims` as if broadcast to `shape`: 0 along broadcast axes.
Sizes broadcast_strides(const Sizes& dims, const Sizes& shape);

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

}  // namespace rlopt
