// Reference: matrix products and Einsum.
#include <algorithm>

#include "tools/reference/kernels.h"

namespace rlopt {

namespace {

/// Start and strides of a matrix.
struct MatrixView {
  int64_t offset = 0;
  int64_t row_stride = 0;
  int64_t column_stride = 0;
};

template <class A>
void multiply(const typename A::T* a, MatrixView left, const typename A::T* b, MatrixView right, int64_t rows,
              int64_t depth, int64_t columns, typename A::T* out) {
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      typename A::Accumulator sum{};
      const auto* x = a + left.offset + i * left.row_stride;
      const auto* y = b + right.offset + j * right.column_stride;
      for (int64_t k = 0; k < depth; ++k) {
        A::accumulate(sum, x[k * left.column_stride], y[k * right.row_stride]);
      }
      out[i * columns + j] = A::finish(sum);
    }
  }
}

/// values += term, broadcast to `shape`.
template <class A>
void add_broadcast(std::vector<typename A::T>& values, const Sizes& shape, const RefTensor& term) {
  const auto& terms = data<typename A::T>(term);
  for_each_index<1>(shape, {broadcast_strides(term.dims, shape)},
                    [&](int64_t i, const std::array<int64_t, 1>& at) {
                      auto& value = values[static_cast<size_t>(i)];
                      value = A::add(value, terms[static_cast<size_t>(at[0])]);
                    });
}

template <class A>
bool matmul(const Call& call) {
  using T = typename A::T;
  Sizes a = call.in[0]->dims;
  Sizes b = call.in[1]->dims;
  // A vector on the left is a row, on the right a column.
  if (a.size() == 1) a.insert(a.begin(), 1);
  if (b.size() == 1) b.push_back(1);
  const Sizes a_batch(a.begin(), a.end() - 2);
  const Sizes b_batch(b.begin(), b.end() - 2);
  const int64_t rows = a[a.size() - 2];
  const int64_t depth = a.back();
  const int64_t columns = b.back();
  const Sizes& shape = call.out[0].dims;
  const size_t batch_rank = std::max(a_batch.size(), b_batch.size());
  const Sizes batch(shape.begin(), shape.begin() + static_cast<std::ptrdiff_t>(batch_rank));
  auto& out = data<T>(call.out[0]);
  out.resize(static_cast<size_t>(count(shape)));
  const T* left = data<T>(*call.in[0]).data();
  const T* right = data<T>(*call.in[1]).data();
  for_each_index<2>(batch, {broadcast_strides(a_batch, batch), broadcast_strides(b_batch, batch)},
                    [&](int64_t i, const std::array<int64_t, 2>& at) {
                      multiply<A>(left, {at[0] * rows * depth, depth, 1}, right,
                                  {at[1] * depth * columns, columns, 1}, rows, depth, columns,
                                  out.data() + i * rows * columns);
                    });
  if (call.node.op == Op::FusedMatMul) {
    if (call.has(2)) add_broadcast<A>(out, shape, *call.in[2]);
    if (call.has(3)) add_broadcast<A>(out, shape, *call.in[3]);
    activate<A>(call.node, out);
  }
  return true;
}

template <class A>
bool gemm(const Call& call) {
  using T = typename A::T;
  const Sizes& a = call.in[0]->dims;
  const Sizes& b = call.in[1]->dims;
  const bool flip_a = call.node.attr_int("transA") != 0;
  const bool flip_b = call.node.attr_int("transB") != 0;
  const Sizes& shape = call.out[0].dims;
  auto& out = data<T>(call.out[0]);
  out.resize(static_cast<size_t>(count(shape)));
  multiply<A>(data<T>(*call.in[0]).data(), flip_a ? MatrixView{0, 1, a[1]} : MatrixView{0, a[1], 1},
              data<T>(*call.in[1]).data(), flip_b ? MatrixView{0, 1, b[1]} : MatrixView{0, b[1], 1}, shape[0],
              flip_a ? a[0] : a[1], shape[1], out.data());
  const T alpha = A::from_double(call.node.attr_float("alpha"));
  for (T& value : out) value = A::mul(alpha, value);
  if (!call.has(2)) return true;
  RefTensor term = *call.in[2];
  const T beta = A::from_double(call.node.attr_float("beta"));
  for (T& value : data<T>(term)) value = A::mul(beta, value);
  add_broadcast<A>(out, shape, term);
  return true;
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
bool einsum(const Call& call) {
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
  const auto sizes_of = [&](const std::vector<int>& loop) {
    Sizes sizes(loop.size(), 1);
    for (size_t axis = 0; axis < loop.size(); ++axis) {
      for (size_t i = 0; i < call.in.size(); ++i) {
        for (size_t k = 0; k < einsum.inputs[i].size(); ++k) {
          if (einsum.inputs[i][k] == loop[axis] && call.in[i]->dims[k] != 1)
            sizes[axis] = call.in[i]->dims[k];
        }
      }
    }
    return sizes;
  };
  std::vector<Sizes> outer_offsets;
  std::vector<Sizes> inner_offsets;
  std::vector<const T*> operands;
  for (size_t i = 0; i < call.in.size(); ++i) {
    outer_offsets.push_back(
        all_offsets(sizes_of(einsum.output), label_strides(*call.in[i], einsum.inputs[i], einsum.output)));
    inner_offsets.push_back(
        all_offsets(sizes_of(inner), label_strides(*call.in[i], einsum.inputs[i], inner)));
    operands.push_back(data<T>(*call.in[i]).data());
  }
  auto& out = data<T>(call.out[0]);
  out.resize(static_cast<size_t>(count(call.out[0].dims)));
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
  return true;
}

}  // namespace

template <class A>
bool eval_contraction(const Call& call) {
  switch (call.node.op) {
    case Op::MatMul:
    case Op::FusedMatMul:
      return matmul<A>(call);
    case Op::Gemm:
      return gemm<A>(call);
    case Op::Einsum:
      return einsum<A>(call);
    default:
      return false;
  }
}

template bool eval_contraction<RealAlgebra>(const Call&);
template bool eval_contraction<FieldAlgebra>(const Call&);
template bool eval_contraction<IntAlgebra>(const Call&);

}  // namespace rlopt
