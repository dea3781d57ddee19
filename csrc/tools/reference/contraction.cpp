// Reference: matrix products and Einsum.
#include <algorithm>

#include "tools/reference/kernels.h"

namespace rlopt {

namespace {

/// Strides of a matrix.
struct MatrixView {
  int64_t row_stride = 0;
  int64_t column_stride = 0;
};

template <class A>
void multiply(const typename A::T* a, MatrixView left, const typename A::T* b, MatrixView right, int64_t rows,
              int64_t depth, int64_t columns, typename A::T* out) {
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      typename A::Accumulator sum{};
      const auto *x = a + i * left.row_stride, *y = b + j * right.column_stride;
      for (int64_t k = 0; k < depth; ++k)
        A::accumulate(sum, x[k * left.column_stride], y[k * right.row_stride]);
      out[i * columns + j] = A::finish(sum);
    }
  }
}

/// values += term, broadcast to `shape`.
template <class A>
void add_broadcast(std::vector<typename A::T>& values, const Sizes& shape, const RefTensor& term) {
  const auto& terms = data<typename A::T>(term);
  for_each_index<1>(
      shape, {broadcast_strides(term.dims, shape)},
      [&](int64_t i, const std::array<int64_t, 1>& at) { values[i] = A::add(values[i], terms[at[0]]); });
}

template <class A>
void matmul(const Call& call) {
  using T = typename A::T;
  Sizes a = call.in[0]->dims, b = call.in[1]->dims;
  // A vector on the left is a row, on the right a column.
  if (a.size() == 1) a.insert(a.begin(), 1);
  if (b.size() == 1) b.push_back(1);
  const Sizes a_batch(a.begin(), a.end() - 2), b_batch(b.begin(), b.end() - 2);
  const int64_t rows = a[a.size() - 2], depth = a.back(), columns = b.back();
  const Sizes& shape = call.out[0].dims;
  const auto batch_rank = static_cast<std::ptrdiff_t>(std::max(a_batch.size(), b_batch.size()));
  const Sizes batch(shape.begin(), shape.begin() + batch_rank);
  auto& out = call.result<T>();
  const T *left = call.operand<T>(0).data(), *right = call.operand<T>(1).data();
  for_each_index<2>(batch, {broadcast_strides(a_batch, batch), broadcast_strides(b_batch, batch)},
                    [&](int64_t i, const std::array<int64_t, 2>& at) {
                      multiply<A>(left + at[0] * rows * depth, {depth, 1}, right + at[1] * depth * columns,
                                  {columns, 1}, rows, depth, columns, out.data() + i * rows * columns);
                    });
  if (call.node.op == Op::FusedMatMul) {
    for (const size_t i : {2, 3})
      if (call.has(i)) add_broadcast<A>(out, shape, *call.in[i]);
    activate<A>(call.node, out);
  }
}

template <class A>
void gemm(const Call& call) {
  using T = typename A::T;
  const Sizes &a = call.in[0]->dims, &b = call.in[1]->dims, &shape = call.out[0].dims;
  const bool flip_a = call.node.attr_int("transA") != 0, flip_b = call.node.attr_int("transB") != 0;
  auto& out = call.result<T>();
  multiply<A>(call.operand<T>(0).data(), flip_a ? MatrixView{1, a[1]} : MatrixView{a[1], 1},
              call.operand<T>(1).data(), flip_b ? MatrixView{1, b[1]} : MatrixView{b[1], 1}, shape[0],
              flip_a ? a[0] : a[1], shape[1], out.data());
  const T alpha = A::from_double(call.node.attr_float("alpha"));
  for (T& value : out) value = A::mul(alpha, value);
  if (!call.has(2)) return;
  RefTensor term = *call.in[2];
  const T beta = A::from_double(call.node.attr_float("beta"));
  for (T& value : data<T>(term)) value = A::mul(beta, value);
  add_broadcast<A>(out, shape, term);
}

/// Strides of one operand for a loop over labels; an axis of size 1 is broadcast.
Sizes label_strides(const RefTensor& operand, const std::vector<int>& labels, const std::vector<int>& loop) {
  const Sizes strides = row_major_strides(operand.dims);
  Sizes result(loop.size(), 0);
  for (size_t axis = 0; axis < loop.size(); ++axis) {
    for (size_t k = 0; k < labels.size(); ++k) {
      if (labels[k] == loop[axis] && operand.dims[k] != 1) result[axis] += strides[k];
    }
  }
  return result;
}

template <class A>
void einsum(const Call& call) {
  using T = typename A::T;
  std::vector<int> ranks;
  for (const RefTensor* operand : call.in) ranks.push_back(static_cast<int>(operand->dims.size()));
  const Einsum einsum = parse_einsum(call.node.attr_string("equation"), ranks);
  // Output labels outermost, the others innermost; sizes are the largest seen, as 1 broadcasts (0 wins over
  // 1).
  std::vector<int> inner;
  for (int label = 0; label < einsum.num_labels; ++label) {
    if (std::find(einsum.output.begin(), einsum.output.end(), label) == einsum.output.end())
      inner.push_back(label);
  }
  Sizes sizes(static_cast<size_t>(einsum.num_labels), 1);
  for (size_t i = 0; i < call.in.size(); ++i) {
    for (size_t k = 0; k < einsum.inputs[i].size(); ++k)
      if (call.in[i]->dims[k] != 1) sizes[einsum.inputs[i][k]] = call.in[i]->dims[k];
  }
  const auto offsets_of = [&](size_t operand, const std::vector<int>& loop) {
    Sizes dims;
    for (const int label : loop) dims.push_back(sizes[label]);
    return all_offsets(dims, label_strides(*call.in[operand], einsum.inputs[operand], loop));
  };
  std::vector<Sizes> outer_offsets, inner_offsets;
  std::vector<const T*> operands;
  for (size_t i = 0; i < call.in.size(); ++i) {
    outer_offsets.push_back(offsets_of(i, einsum.output));
    inner_offsets.push_back(offsets_of(i, inner));
    operands.push_back(call.operand<T>(i).data());
  }
  auto& out = call.result<T>();
  for (size_t o = 0; o < out.size(); ++o) {
    typename A::Accumulator sum{};
    for (size_t k = 0; k < inner_offsets[0].size(); ++k) {
      T product = A::from_int(1);
      for (size_t i = 0; i + 1 < operands.size(); ++i) {
        product = A::mul(product, operands[i][outer_offsets[i][o] + inner_offsets[i][k]]);
      }
      A::accumulate(sum, product, operands.back()[outer_offsets.back()[o] + inner_offsets.back()[k]]);
    }
    out[o] = A::finish(sum);
  }
}

}  // namespace

template <class A>
std::vector<KernelRow> contraction_rows() {
  return {
      {Op::MatMul, matmul<A>}, {Op::FusedMatMul, matmul<A>}, {Op::Gemm, gemm<A>}, {Op::Einsum, einsum<A>}};
}

RLOPT_INSTANTIATE(contraction_rows)

}  // namespace rlopt
