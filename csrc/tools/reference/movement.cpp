// Reference: operators that rearrange or select from one tensor, join or split.
#include <algorithm>

#include "tools/reference/kernels.h"

namespace rlopt {

namespace {

constexpr int64_t kFill = -1;

/// For every axis of the result, the input coordinate for each position; kFill means the fill value.
using Coordinates = std::vector<Sizes>;

/// The identity on every axis.
Coordinates identity(const Sizes& dims) {
  Coordinates coordinates;
  for (const int64_t dim : dims) {
    coordinates.emplace_back(static_cast<size_t>(dim));
    for (int64_t i = 0; i < dim; ++i) coordinates.back()[at(i)] = i;
  }
  return coordinates;
}

/// out[i, j, ...] = in[coordinates[0][i], coordinates[1][j], ...].
template <class T>
void select(const Call& call, const Coordinates& coordinates, T fill) {
  const RefTensor& x = *call.in[0];
  const Sizes strides = row_major_strides(x.dims);
  // Offsets of the axes so far, extended one axis at a time.
  Sizes offsets{0};
  for (size_t axis = 0; axis < coordinates.size(); ++axis) {
    Sizes next;
    next.reserve(offsets.size() * coordinates[axis].size());
    for (const int64_t offset : offsets) {
      for (const int64_t at : coordinates[axis]) {
        next.push_back(offset == kFill || at == kFill ? kFill : offset + at * strides[axis]);
      }
    }
    offsets = std::move(next);
  }
  const auto& from = data<T>(x);
  auto& to = data<T>(call.out[0]);
  to.reserve(offsets.size());
  for (const int64_t offset : offsets) to.push_back(offset == kFill ? fill : from[offset]);
}

/// Reads the input with `dims` and `strides`.
template <class T>
void restride(const Call& call, const Sizes& dims, const Sizes& strides) {
  const auto& from = call.operand<T>();
  auto& to = call.result<T>();
  for_each_index<1>(dims, {strides},
                    [&](int64_t i, const std::array<int64_t, 1>& at) { to[i] = from[at[0]]; });
}

template <class T>
void reshape(const Call& call) {
  data<T>(call.out[0]) = call.operand<T>();
}

template <class T>
void expand(const Call& call) {
  const Sizes& shape = call.out[0].dims;
  restride<T>(call, shape, broadcast_strides(call.in[0]->dims, shape));
}

template <class T>
void transpose(const Call& call) {
  const Sizes strides = row_major_strides(call.in[0]->dims);
  const Ints& perm = call.node.attr_ints("perm");
  Sizes permuted(strides.rbegin(), strides.rend());
  for (size_t i = 0; i < perm.size(); ++i) permuted[i] = strides[at(perm[i])];
  restride<T>(call, call.out[0].dims, permuted);
}

template <class T>
void slice(const Call& call) {
  const Sizes& dims = call.in[0]->dims;
  const Node& node = call.node;
  Coordinates coordinates = identity(dims);
  const Ints& axes = node.attr_ints("axes");
  const Ints& steps = node.attr_ints("steps");
  for (size_t i = 0; i < axes.size(); ++i) {
    const auto axis =
        static_cast<size_t>(axes[i] < 0 ? axes[i] + static_cast<int64_t>(dims.size()) : axes[i]);
    const int64_t step = steps.empty() ? 1 : steps[i];
    const int64_t size = dims[axis];
    int64_t start = node.attr_ints("starts")[i];
    if (start < 0) start += size;
    start = step > 0 ? std::clamp<int64_t>(start, 0, size) : std::clamp<int64_t>(start, -1, size - 1);
    Sizes& selected = coordinates[axis];
    selected.resize(static_cast<size_t>(call.out[0].dims[axis]));
    for (size_t k = 0; k < selected.size(); ++k) selected[k] = start + static_cast<int64_t>(k) * step;
  }
  select<T>(call, coordinates, T(0));
}

/// Input coordinate of position `at` (counted from the input's first element), by padding mode.
int64_t padded_coordinate(const std::string& mode, int64_t at, int64_t size) {
  if (at >= 0 && at < size) return at;
  if (mode == "constant") return kFill;
  if (mode == "edge") return std::clamp<int64_t>(at, 0, size - 1);
  if (mode == "wrap") return (at % size + size) % size;
  return at < 0 ? -at : 2 * (size - 1) - at;
}

template <class A>
void pad(const Call& call) {
  const Sizes& dims = call.in[0]->dims;
  const Ints& pads = call.node.attr_ints("pads");
  const std::string& mode = call.node.attr_string("mode");
  Coordinates coordinates = identity(call.out[0].dims);
  for (size_t axis = 0; axis < dims.size(); ++axis) {
    for (int64_t& at : coordinates[axis]) at = padded_coordinate(mode, at - pads[axis], dims[axis]);
  }
  select<typename A::T>(call, coordinates, A::from_double(call.node.attr_float("value")));
}

template <class T>
void tile(const Call& call) {
  const Sizes& dims = call.in[0]->dims;
  Coordinates coordinates = identity(call.out[0].dims);
  for (size_t axis = 0; axis < dims.size(); ++axis) {
    for (int64_t& at : coordinates[axis]) at %= dims[axis];
  }
  select<T>(call, coordinates, T(0));
}

template <class T>
void concat(const Call& call) {
  const size_t axis = call.axis(call.out[0].dims.size());
  auto& to = data<T>(call.out[0]);
  for (int64_t o = 0; o < Rows(call.out[0].dims, axis).outer; ++o) {
    for (const RefTensor* part : call.in) {
      const Rows rows(part->dims, axis);
      const auto from = data<T>(*part).begin() + o * rows.n * rows.inner;
      to.insert(to.end(), from, from + rows.n * rows.inner);
    }
  }
}

template <class T>
void split(const Call& call) {
  const size_t axis = call.axis(call.in[0]->dims.size());
  auto from = call.operand<T>().begin();
  for (int64_t o = 0; o < Rows(call.in[0]->dims, axis).outer; ++o) {
    for (RefTensor& part : call.out) {
      const Rows rows(part.dims, axis);
      data<T>(part).insert(data<T>(part).end(), from, from + rows.n * rows.inner);
      from += rows.n * rows.inner;
    }
  }
}

template <class A>
void trilu(const Call& call) {
  const Sizes& dims = call.in[0]->dims;
  const int64_t rows = dims[dims.size() - 2], columns = dims.back(), k = call.node.attr_int("k");
  const bool upper = call.node.attr_int("upper") != 0;
  auto& out = data<typename A::T>(call.out[0]);
  out = call.operand<typename A::T>();
  for (int64_t i = 0; i < static_cast<int64_t>(out.size()); ++i) {
    const int64_t diagonal = i % columns - i / columns % rows;
    if (upper ? diagonal < k : diagonal > k) out[i] = A::from_int(0);
  }
}

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

}  // namespace

template <class A>
std::vector<KernelRow> movement_rows() {
  using T = typename A::T;
  return {{Op::Reshape, reshape<T>},     {Op::Flatten, reshape<T>},
          {Op::Squeeze, reshape<T>},     {Op::Unsqueeze, reshape<T>},
          {Op::Transpose, transpose<T>}, {Op::Expand, expand<T>},
          {Op::Slice, slice<T>},         {Op::Pad, pad<A>},
          {Op::Tile, tile<T>},           {Op::Concat, concat<T>},
          {Op::Split, split<T>},         {Op::Trilu, trilu<A>},
          {Op::Gather, gather<T>}};
}

RLOPT_INSTANTIATE(movement_rows)

}  // namespace rlopt
