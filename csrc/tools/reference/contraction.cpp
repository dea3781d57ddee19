// Reference: matrix products.
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

}  // namespace

template <class A>
std::vector<KernelRow> contraction_rows() {
  return {{Op::MatMul, matmul<A>}, {Op::FusedMatMul, matmul<A>}, {Op::Gemm, gemm<A>}};
}

RLOPT_INSTANTIATE(contraction_rows)

}  // namespace rlopt
