// Types of pools, resizing and reductions.
#include <algorithm>
#include <cmath>

#include "infer/rules.h"

namespace rlopt {

namespace {

bool contains(const std::vector<size_t>& axes, size_t axis) {
  return std::find(axes.begin(), axes.end(), axis) != axes.end();
}

/// Number of windows along one dim. `room` is the padded input size minus one window.
Dim count_windows(const InferCall& call, const Dim& input, const Dim& room, int64_t reach, int64_t begin,
                  int64_t end, int64_t stride) {
  if (!call.attr_flag("ceil_mode")) return room.floor_div(stride) + 1;
  const Dim count = (room + (stride - 1)).floor_div(stride) + 1;
  // A window that would start in the padding after the input is dropped. With a small stride there is none.
  if (stride <= reach - end) return count;
  if (count.is_static()) return (count.value() - 1) * stride >= input.value() + begin ? count - 1 : count;
  return Dim::symbol("windows(" + input.str() + "," + std::to_string(reach) + "," + std::to_string(stride) +
                     "," + std::to_string(begin) + "," + std::to_string(end) + ")");
}

}  // namespace

Types infer_pool(const InferCall& call) {
  const TensorType& x = call.in(0);
  call.require_floating(0);
  call.require_rank(0, 3, 5);
  const size_t rank = x.dims.size() - 2;
  const Ints& kernel = call.attr_ints("kernel_shape");
  const bool is_positive = std::all_of(kernel.begin(), kernel.end(), [](int64_t k) { return k >= 1; });
  call.require(kernel.size() == rank && is_positive, std::to_string(rank) + " positive kernel sizes",
               ints_str(kernel));
  const Window window = make_window(op_info(call.op()).name, rank, call.attr_ints("strides"),
                                    call.attr_ints("pads"), call.attr_ints("dilations"));
  if (call.op() == Op::AveragePool) call.attr_flag("count_include_pad");
  TensorType type{x.dtype, true, {x.dims[0], x.dims[1]}};
  for (size_t i = 0; i < rank; ++i) {
    const int64_t reach = (Dim(kernel[i] - 1) * window.dilations[i] + 1).value();
    // A window with only padding would have no maximum and no mean.
    call.require(window.begins[i] < reach && window.ends[i] < reach, "pads below the window's size",
                 ints_str(call.attr_ints("pads")));
    const Dim room = x.dims[i + 2] + window.begins[i] + window.ends[i] - reach;
    call.require(!room.is_static() || room.value() >= 0, "a window within the padded input", x.str());
    type.dims.push_back(
        count_windows(call, x.dims[i + 2], room, reach, window.begins[i], window.ends[i], window.strides[i]));
  }
  return {type};
}

Types infer_global_pool(const InferCall& call) {
  call.require_floating(0);
  call.require_rank(0, 3, 64);
  TensorType type = call.in(0);
  std::fill(type.dims.begin() + 2, type.dims.end(), Dim(1));
  return {type};
}

Types infer_resize(const InferCall& call) {
  TensorType type = call.in(0);
  call.require_floating(0);
  const Ints& sizes = call.attr_ints("sizes");
  const Floats& scales = call.attr_floats("scales");
  call.require(sizes.empty() != scales.empty(), "either sizes or scales",
               ints_str(sizes) + " and " + attr_str(AttrValue(scales)));
  call.require(sizes.size() + scales.size() == type.dims.size(), "one size or scale per dim",
               std::to_string(sizes.size() + scales.size()));
  const std::string& mode = call.attr_string("mode");
  call.require(mode == "nearest" || mode == "linear" || mode == "cubic", "mode of nearest, linear or cubic",
               mode);
  for (size_t i = 0; i < type.dims.size(); ++i) {
    if (!sizes.empty()) {
      call.require(sizes[i] >= 0, "sizes of at least 0", ints_str(sizes));
      type.dims[i] = sizes[i];
      continue;
    }
    const double scale = scales[i];
    const double size = type.dims[i].is_static() ? static_cast<double>(type.dims[i].value()) : 1;
    const double largest = std::max(scale, size * scale);
    const bool fits = scale > 1 / kMaxExactInteger && largest < kMaxExactInteger;
    call.require(fits, "positive scales and sizes below 2^53", attr_str(AttrValue(scales)));
    if (type.dims[i].is_static()) {
      type.dims[i] = static_cast<int64_t>(std::floor(size * scale));
    } else if (scale == std::floor(scale)) {
      type.dims[i] = type.dims[i] * static_cast<int64_t>(scale);
    } else if (1 / scale == std::floor(1 / scale)) {
      type.dims[i] = type.dims[i].floor_div(static_cast<int64_t>(1 / scale));
    } else {
      type.dims[i] = Dim::symbol("resized(" + type.dims[i].str() + "," + attr_str(AttrValue(scale)) + ")");
    }
  }
  return {type};
}

Types infer_reduce(const InferCall& call) {
  const TensorType& x = call.in(0);
  call.require_numeric(0);
  switch (call.op()) {
    case Op::ReduceL2:
    case Op::ReduceLogSum:
    case Op::ReduceLogSumExp:
    case Op::ReduceMean:
      call.require_floating(0);
      break;
    default:
      break;
  }
  const std::vector<size_t> axes = call.axes(call.attr_ints("axes"), x.rank());
  const bool keep = call.attr_flag("keepdims");
  TensorType type{x.dtype, true, {}};
  for (size_t i = 0; i < x.dims.size(); ++i) {
    if (!axes.empty() && !contains(axes, i)) {
      type.dims.push_back(x.dims[i]);
    } else if (keep) {
      type.dims.emplace_back(1);
    }
  }
  return {type};
}

Types infer_arg_reduce(const InferCall& call) {
  const TensorType& x = call.in(0);
  call.require(is_floating(x.dtype) || is_integer(x.dtype), "ordered numbers", x.str());
  const size_t axis = call.axis(call.attr_int("axis"), x.rank());
  call.attr_flag("select_last_index");
  call.require(!x.dims[axis].is_static() || x.dims[axis].value() > 0, "a non-empty axis", x.str());
  TensorType type{DType::i64, true, x.dims};
  const auto position = type.dims.begin() + static_cast<std::ptrdiff_t>(axis);
  if (call.attr_flag("keepdims")) {
    *position = 1;
  } else {
    type.dims.erase(position);
  }
  return {type};
}

Types infer_top_k(const InferCall& call) {
  const TensorType& x = call.in(0);
  call.require(is_floating(x.dtype) || is_integer(x.dtype), "ordered numbers", x.str());
  const size_t axis = call.axis(call.attr_int("axis"), x.rank());
  const int64_t k = call.attr_int("k");
  call.attr_flag("largest");
  call.attr_flag("sorted");
  const Dim& size = x.dims[axis];
  call.require(k >= 0 && (!size.is_static() || k <= size.value()), "k of at most " + size.str(),
               std::to_string(k));
  TensorType values = x;
  values.dims[axis] = k;
  return {values, {DType::i64, true, values.dims}};
}

}  // namespace rlopt
