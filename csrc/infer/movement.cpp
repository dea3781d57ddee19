// Types of operators that only view or rearrange one tensor.
#include <algorithm>
#include <limits>

#include "infer/rules.h"

namespace rlopt {

namespace {

Dim product(const Dims& dims) {
  Dim result = 1;
  for (const Dim& dim : dims) result = result * dim;
  return result;
}

/// The -1 of a Reshape: the size that `rest` (dims not copied) leaves for it. A possibly inexact quotient of
/// symbols becomes a named symbol.
Dim inferred_dim(const InferCall& call, const Dims& rest, int64_t known) {
  call.require(known > 0, "no 0 beside -1", ints_str(call.attr_ints("shape")));
  const Dim total = product(rest);
  call.require(!total.is_static() || total.value() % known == 0,
               "a shape for " + total.str() + " elements beside the copied dims",
               ints_str(call.attr_ints("shape")));
  return total.floor_div(known);
}

std::string slice_str(int64_t bound) {
  if (bound == std::numeric_limits<int64_t>::max()) return "";
  return std::to_string(bound);
}

/// Length of dim[start:end:step] for a static dim.
int64_t static_slice(int64_t dim, int64_t start, int64_t end, int64_t step) {
  const auto from_front = [dim](int64_t bound) { return bound < 0 ? bound + dim : bound; };
  if (step > 0) {
    const int64_t first = std::clamp<int64_t>(from_front(start), 0, dim);
    const int64_t last = std::clamp<int64_t>(from_front(end), 0, dim);
    return last <= first ? 0 : (last - first - 1) / step + 1;
  }
  const int64_t first = std::clamp<int64_t>(from_front(start), -1, dim - 1);
  const int64_t last = std::clamp<int64_t>(from_front(end), -1, dim - 1);
  return first <= last ? 0 : (first - last - 1) / -step + 1;
}

/// A bound of a slice with positive step, clamped to [0, dim], if the result is the same for all values of
/// the symbols.
std::optional<Dim> clamped_bound(const Dim& dim, int64_t bound) {
  // Exporters write "to the end" as a number larger than any dim.
  if (bound >= std::numeric_limits<int32_t>::max()) return dim;
  if (bound >= 0) return is_at_least(dim, bound) ? std::optional<Dim>(bound) : std::nullopt;
  if (bound <= std::numeric_limits<int32_t>::min()) return Dim(0);
  return is_at_least(dim, -bound) ? std::optional<Dim>(dim + bound) : std::nullopt;
}

Dim symbolic_slice(const Dim& dim, int64_t start, int64_t end, int64_t step) {
  const std::optional<Dim> first = clamped_bound(dim, start);
  const std::optional<Dim> last = clamped_bound(dim, end);
  if (step > 0 && first && last) {
    const Dim length = *last - *first;
    if (is_at_least(length, 0)) return step == 1 ? length : (length + (step - 1)).floor_div(step);
    if (is_at_least(Dim(0) - length, 0)) return 0;
  }
  const bool is_reversal = step == -1 && end <= std::numeric_limits<int32_t>::min() &&
                           (start == -1 || start >= std::numeric_limits<int32_t>::max());
  if (is_reversal) return dim;
  std::string name = dim.str();
  name.insert(0, 1, '(').append(")[").append(slice_str(start)).append(":").append(slice_str(end));
  return Dim::symbol(name.append(":").append(std::to_string(step)).append("]"));
}

}  // namespace

Types infer_reshape(const InferCall& call) {
  const TensorType& x = call.in(0);
  const Ints& shape = call.attr_ints("shape");
  const bool allow_zero = call.attr_flag("allowzero");
  TensorType type{x.dtype, true, {}};
  std::vector<bool> is_copied(x.dims.size(), false);
  std::optional<size_t> inferred;
  int64_t known = 1;
  for (size_t i = 0; i < shape.size(); ++i) {
    call.require(shape[i] >= -1, "sizes, 0 or -1 in shape", ints_str(shape));
    if (shape[i] == -1) {
      call.require(!inferred, "at most one -1 in shape", ints_str(shape));
      inferred = i;
      type.dims.emplace_back(1);
    } else if (shape[i] == 0 && !allow_zero) {
      call.require(i < x.dims.size(), "a dim to copy where shape is 0", x.str() + " to " + ints_str(shape));
      is_copied[i] = true;
      type.dims.push_back(x.dims[i]);
    } else {
      call.require(!__builtin_mul_overflow(known, shape[i], &known), "sizes within 64 bits", ints_str(shape));
      type.dims.emplace_back(shape[i]);
    }
  }
  Dims rest;
  for (size_t i = 0; i < x.dims.size(); ++i) {
    if (!is_copied[i]) rest.push_back(x.dims[i]);
  }
  if (inferred) type.dims[*inferred] = inferred_dim(call, rest, known);
  const bool is_named_quotient = inferred && !product(rest).is_static();
  call.require(is_named_quotient || product(type.dims) == product(x.dims),
               "a shape of " + product(x.dims).str() + " elements", ints_str(shape));
  return {type};
}

Types infer_flatten(const InferCall& call) {
  const TensorType& x = call.in(0);
  const int64_t axis = call.attr_int("axis");
  call.require(axis >= -x.rank() && axis <= x.rank(), "an axis of at most " + std::to_string(x.rank()),
               std::to_string(axis));
  const auto middle = x.dims.begin() + static_cast<std::ptrdiff_t>(axis < 0 ? axis + x.rank() : axis);
  return {{x.dtype, true, {product(Dims(x.dims.begin(), middle)), product(Dims(middle, x.dims.end()))}}};
}

Types infer_squeeze(const InferCall& call) {
  const TensorType& x = call.in(0);
  const std::vector<size_t> axes = call.axes(call.attr_ints("axes"), x.rank());
  TensorType type{x.dtype, true, {}};
  for (size_t i = 0; i < x.dims.size(); ++i) {
    const bool is_named = std::find(axes.begin(), axes.end(), i) != axes.end();
    if (axes.empty()) {
      // Without axes the rank would depend on a symbol's value.
      call.require(x.dims[i].is_static(), "axes, where a dim is symbolic", x.str());
      if (x.dims[i] == Dim(1)) continue;
    }
    call.require(!is_named || x.dims[i] == Dim(1), "a dim of 1 at axis " + std::to_string(i), x.str());
    if (!is_named) type.dims.push_back(x.dims[i]);
  }
  return {type};
}

Types infer_unsqueeze(const InferCall& call) {
  const TensorType& x = call.in(0);
  const int rank = x.rank() + static_cast<int>(call.attr_ints("axes").size());
  std::vector<size_t> axes = call.axes(call.attr_ints("axes"), rank);
  std::sort(axes.begin(), axes.end());
  TensorType type = x;
  for (const size_t axis : axes)
    type.dims.insert(type.dims.begin() + static_cast<std::ptrdiff_t>(axis), Dim(1));
  return {type};
}

Types infer_transpose(const InferCall& call) {
  TensorType type = call.in(0);
  const Ints& perm = call.attr_ints("perm");
  if (perm.empty()) {
    std::reverse(type.dims.begin(), type.dims.end());
    return {type};
  }
  const bool is_complete = perm.size() == type.dims.size();
  const bool is_positive = std::all_of(perm.begin(), perm.end(), [](int64_t p) { return p >= 0; });
  call.require(is_complete && is_positive, "a permutation of " + std::to_string(type.rank()) + " axes",
               ints_str(perm));
  const std::vector<size_t> axes = call.axes(perm, type.rank());
  for (size_t i = 0; i < axes.size(); ++i) type.dims[i] = call.in(0).dims[axes[i]];
  return {type};
}

Types infer_expand(const InferCall& call) {
  const Ints& shape = call.attr_ints("shape");
  const bool is_size = std::all_of(shape.begin(), shape.end(), [](int64_t d) { return d >= 0; });
  call.require(is_size, "sizes of at least 0 in shape", ints_str(shape));
  return {{call.in(0).dtype, true, call.broadcast(call.in(0).dims, Dims(shape.begin(), shape.end()))}};
}

Types infer_split(const InferCall& call) {
  const TensorType& x = call.in(0);
  const size_t axis = call.axis(call.attr_int("axis"), x.rank());
  const Ints& sizes = call.attr_ints("sizes");
  Dim total = 0;
  Types types;
  for (const int64_t size : sizes) {
    call.require(size >= 0, "sizes of at least 0", ints_str(sizes));
    total = total + size;
    types.push_back(x);
    types.back().dims[axis] = size;
  }
  call.require(!sizes.empty() && total == x.dims[axis], "sizes that sum to " + x.dims[axis].str(),
               ints_str(sizes));
  return types;
}

Types infer_slice(const InferCall& call) {
  TensorType type = call.in(0);
  const std::vector<size_t> axes = call.axes(call.attr_ints("axes"), type.rank());
  const Ints& starts = call.attr_ints("starts");
  const Ints& ends = call.attr_ints("ends");
  const Ints& steps = call.attr_ints("steps");
  const size_t count = axes.size();
  call.require(starts.size() == count && ends.size() == count && (steps.empty() || steps.size() == count),
               "as many starts, ends and steps as axes",
               ints_str(starts) + ", " + ints_str(ends) + ", " + ints_str(steps));
  for (size_t i = 0; i < count; ++i) {
    const int64_t step = steps.empty() ? 1 : steps[i];
    call.require(step != 0 && step != std::numeric_limits<int64_t>::min(), "steps other than 0",
                 ints_str(steps));
    Dim& dim = type.dims[axes[i]];
    dim = dim.is_static() ? Dim(static_slice(dim.value(), starts[i], ends[i], step))
                          : symbolic_slice(dim, starts[i], ends[i], step);
  }
  return {type};
}

Types infer_concat(const InferCall& call) {
  TensorType type = call.in(0);
  const size_t axis = call.axis(call.attr_int("axis"), type.rank());
  for (size_t i = 1; i < call.num_inputs(); ++i) {
    call.require_same_dtype(0, i);
    const TensorType& next = call.in(i);
    bool fits = next.rank() == type.rank();
    for (size_t k = 0; fits && k < type.dims.size(); ++k) fits = k == axis || next.dims[k] == type.dims[k];
    call.require(fits, "equal dims beside axis " + std::to_string(axis),
                 call.in(0).str() + " and " + next.str());
    type.dims[axis] = type.dims[axis] + next.dims[axis];
  }
  return {type};
}

Types infer_tile(const InferCall& call) {
  TensorType type = call.in(0);
  const Ints& repeats = call.attr_ints("repeats");
  const bool is_count = std::all_of(repeats.begin(), repeats.end(), [](int64_t r) { return r >= 0; });
  call.require(repeats.size() == type.dims.size() && is_count, "one repeat count per dim of " + type.str(),
               ints_str(repeats));
  for (size_t i = 0; i < repeats.size(); ++i) type.dims[i] = type.dims[i] * repeats[i];
  return {type};
}

Types infer_pad(const InferCall& call) {
  TensorType type = call.in(0);
  const Ints& pads = call.attr_ints("pads");
  const std::string& mode = call.attr_string("mode");
  const size_t rank = type.dims.size();
  call.require(pads.size() == 2 * rank, "two pads per dim of " + type.str(), ints_str(pads));
  call.require(mode == "constant" || mode == "reflect" || mode == "edge" || mode == "wrap",
               "mode of constant, reflect, edge or wrap", mode);
  for (size_t i = 0; i < rank; ++i) {
    const int64_t begin = pads[i];
    const int64_t end = pads[i + rank];
    const Dim& dim = type.dims[i];
    if (mode != "constant") {
      call.require(begin >= 0 && end >= 0, "pads of at least 0 in mode " + mode, ints_str(pads));
      const int64_t most = std::max(begin, end);
      // Reflection does not repeat the border; wrapping is limited to once around here.
      const int64_t needed = most == 0 ? 0 : mode == "reflect" ? most + 1 : mode == "wrap" ? most : 1;
      call.require(!dim.is_static() || dim.value() >= needed, "pads that the input can fill in mode " + mode,
                   ints_str(pads) + " of " + call.in(0).str());
    }
    const Dim size = dim + begin + end;
    // Crops from both sides must not overlap: each side has to find the elements it removes.
    const bool fits = is_at_least(dim + std::min<int64_t>(begin, 0) + std::min<int64_t>(end, 0), 0);
    call.require(fits || !dim.is_static(), "pads that crop no more than there is", ints_str(pads));
    type.dims[i] = size;
  }
  return {type};
}

Types infer_depth_to_space(const InferCall& call) {
  TensorType type = call.in(0);
  call.require_rank(0, 4, 4);
  const int64_t block = call.attr_int("blocksize");
  const std::string& mode = call.attr_string("mode");
  call.require(mode == "DCR" || mode == "CRD", "mode of DCR or CRD", mode);
  call.require(block > 0 && block < (int64_t{1} << 31), "a positive blocksize", std::to_string(block));
  const Dim channels = type.dims[1].floor_div(block * block);
  call.require(channels * (block * block) == type.dims[1], "channels that blocksize * blocksize divides",
               type.str());
  type.dims = {type.dims[0], channels, type.dims[2] * block, type.dims[3] * block};
  return {type};
}

Types infer_space_to_depth(const InferCall& call) {
  TensorType type = call.in(0);
  call.require_rank(0, 4, 4);
  const int64_t block = call.attr_int("blocksize");
  call.require(block > 0 && block < (int64_t{1} << 31), "a positive blocksize", std::to_string(block));
  const Dim height = type.dims[2].floor_div(block);
  const Dim width = type.dims[3].floor_div(block);
  call.require(height * block == type.dims[2] && width * block == type.dims[3],
               "spatial dims that blocksize divides", type.str());
  type.dims = {type.dims[0], type.dims[1] * (block * block), height, width};
  return {type};
}

}  // namespace rlopt
