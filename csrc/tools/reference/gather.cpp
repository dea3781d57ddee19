// Reference: selection and scattering by index.
#include "tools/reference/functions.h"
#include "tools/reference/kernels.h"

namespace rlopt {

namespace {

/// Negative indices count from the end.
int64_t checked_index(const Call& call, int64_t index, int64_t size) {
  const int64_t from_front = index < 0 ? index + size : index;
  if (from_front >= 0 && from_front < size) return from_front;
  throw TypeError(call.node.info().name + ": expected indices from -" + std::to_string(size) + " to " +
                  std::to_string(size - 1) + ", got " + std::to_string(index));
}

template <class T>
void gather(const Call& call) {
  const Sizes& dims = call.in[0]->dims;
  const Rows rows(dims, call.axis(dims.size()));
  const auto& x = call.operand<T>();
  auto& out = data<T>(call.out[0]);
  for (int64_t o = 0; o < rows.outer; ++o) {
    for (const int64_t index : call.in[1]->ints) {
      const auto from = x.begin() + (o * rows.n + checked_index(call, index, rows.n)) * rows.inner;
      out.insert(out.end(), from, from + rows.inner);
    }
  }
}

/// For each element i of the indices (operand 1), its position in operand 0.
Sizes element_positions(const Call& call) {
  const Sizes& dims = call.in[0]->dims;
  const size_t axis = call.axis(dims.size());
  Sizes strides = row_major_strides(dims);
  const int64_t axis_stride = strides[axis];
  strides[axis] = 0;
  Sizes positions = all_offsets(call.in[1]->dims, strides);
  for (size_t i = 0; i < positions.size(); ++i) {
    positions[i] += checked_index(call, call.in[1]->ints[i], dims[axis]) * axis_stride;
  }
  return positions;
}

/// Starts of the slices selected by the last dim of the indices, after `batch` shared leading dims.
Sizes slice_positions(const Call& call, size_t batch) {
  const Sizes& dims = call.in[0]->dims;
  const Sizes& index_dims = call.in[1]->dims;
  const Sizes strides = row_major_strides(dims);
  const auto depth = static_cast<size_t>(index_dims.back());
  const int64_t tuples = count(Sizes(index_dims.begin(), index_dims.end() - 1));
  const int64_t batches = count(Sizes(dims.begin(), dims.begin() + static_cast<std::ptrdiff_t>(batch)));
  const int64_t batch_stride = batch == 0 ? 0 : strides[batch - 1];
  Sizes positions;
  for (int64_t i = 0; i < tuples; ++i) {
    int64_t position = i / (tuples / batches) * batch_stride;
    for (size_t d = 0; d < depth; ++d) {
      const int64_t index = call.in[1]->ints[static_cast<size_t>(i) * depth + d];
      position += checked_index(call, index, dims[batch + d]) * strides[batch + d];
    }
    positions.push_back(position);
  }
  return positions;
}

/// Elements per slice selected by `slice_positions`.
int64_t slice_size(const Call& call, size_t batch) {
  const Sizes& dims = call.in[0]->dims;
  const auto first = static_cast<std::ptrdiff_t>(batch) + call.in[1]->dims.back();
  return count(Sizes(dims.begin() + first, dims.end()));
}

template <class T>
void gather_elements(const Call& call) {
  for (const int64_t position : element_positions(call))
    data<T>(call.out[0]).push_back(call.operand<T>()[position]);
}

template <class T>
void gather_nd(const Call& call) {
  const auto batch = static_cast<size_t>(call.node.attr_int("batch_dims"));
  const auto& x = call.operand<T>();
  auto& out = data<T>(call.out[0]);
  const int64_t size = slice_size(call, batch);
  for (const int64_t position : slice_positions(call, batch)) {
    out.insert(out.end(), x.begin() + position, x.begin() + position + size);
  }
}

/// Combines an update with the existing element.
template <class A>
typename A::T combine(const std::string& reduction, typename A::T old, typename A::T update) {
  if (reduction == "add") return A::add(old, update);
  if (reduction == "mul") return A::mul(old, update);
  if (reduction == "max") return Functions<A>::max(old, update);
  if (reduction == "min") return Functions<A>::min(old, update);
  return update;
}

/// Updates are applied in order, so that the last of several to one place wins.
template <class A>
void scatter(const Call& call, const Sizes& positions, int64_t size) {
  using T = typename A::T;
  const std::string& reduction = call.node.attr_string("reduction");
  const auto& updates = call.operand<T>(2);
  auto& out = data<T>(call.out[0]);
  out = call.operand<T>();
  size_t next = 0;
  for (const int64_t position : positions) {
    for (int64_t i = position; i < position + size; ++i)
      out[i] = combine<A>(reduction, out[i], updates[next++]);
  }
}

template <class A>
void scatter_elements(const Call& call) {
  scatter<A>(call, element_positions(call), 1);
}

template <class A>
void scatter_nd(const Call& call) {
  scatter<A>(call, slice_positions(call, 0), slice_size(call, 0));
}

}  // namespace

template <class A>
std::vector<KernelRow> gather_rows() {
  using T = typename A::T;
  return {{Op::Gather, gather<T>},
          {Op::GatherElements, gather_elements<T>},
          {Op::GatherND, gather_nd<T>},
          {Op::ScatterElements, scatter_elements<A>},
          {Op::ScatterND, scatter_nd<A>}};
}

RLOPT_INSTANTIATE(gather_rows)

}  // namespace rlopt
