// Types of operators that keep the shape of their operands or broadcast them; casts, scatters and
// normalisations.
#include <algorithm>

#include "infer/rules.h"

namespace rlopt {

namespace {

void require_dtype(const InferCall& call, size_t i, bool fits, const char* what) {
  call.require(fits, std::string(what) + " for input " + std::to_string(i), call.in(i).str());
}

}  // namespace

Types infer_unary(const InferCall& call) {
  if (call.op() == Op::Gelu) {
    const std::string& form = call.attr_string("approximate");
    call.require(form == "none" || form == "tanh", "approximate of \"none\" or \"tanh\"", form);
  }
  if (call.op() == Op::CumSum) {
    call.axis(call.attr_int("axis"), call.in(0).rank());
    call.attr_flag("exclusive");
    call.attr_flag("reverse");
  }
  if (call.op() == Op::Trilu) {
    call.require_rank(0, 2, 64);
    call.attr_flag("upper");
  }
  return {call.in(0)};
}

Types infer_cast(const InferCall& call) {
  TensorType type = call.in(0);
  const std::string& to = call.attr_string("to");
  try {
    type.dtype = parse_dtype(to);
  } catch (const ParseError&) {
    call.fail("a dtype name for attribute 'to'", "\"" + to + "\"");
  }
  call.require(type.dtype != DType::other && call.in(0).dtype != DType::other, "numbers or bool",
               call.in(0).str() + " to " + to);
  return {type};
}

Types infer_predicate(const InferCall& call) { return {{DType::boolean, true, call.in(0).dims}}; }

Types infer_broadcast(const InferCall& call) {
  TensorType type = call.in(0);
  for (size_t i = 0; i < call.num_inputs(); ++i) {
    call.require_same_dtype(0, i);
    if (i > 0) type.dims = call.broadcast(type.dims, call.in(i).dims);
  }
  if (call.op() == Op::BitShift) {
    const std::string& direction = call.attr_string("direction");
    call.require(direction == "LEFT" || direction == "RIGHT", "direction of LEFT or RIGHT", direction);
  }
  if (call.op() == Op::Mod) {
    call.require(call.attr_flag("fmod") || is_integer(type.dtype), "an integer dtype, or fmod=1", type.str());
  }
  if (call.op() == Op::PRelu) call.require_broadcasts_to(1, call.in(0).dims);
  return {type};
}

Types infer_compare(const InferCall& call) {
  call.require_same_dtype(0, 1);
  return {{DType::boolean, true, call.broadcast(call.in(0).dims, call.in(1).dims)}};
}

Types infer_where(const InferCall& call) {
  require_dtype(call, 0, call.in(0).dtype == DType::boolean, "bool");
  call.require_same_dtype(1, 2);
  const Dims choices = call.broadcast(call.in(1).dims, call.in(2).dims);
  return {{call.in(1).dtype, true, call.broadcast(call.in(0).dims, choices)}};
}

Types infer_scatter(const InferCall& call) {
  const TensorType& data = call.in(0);
  const TensorType& indices = call.in(1);
  const TensorType& updates = call.in(2);
  call.require_index(1);
  call.require_same_dtype(0, 2);
  const std::string& reduction = call.attr_string("reduction");
  const std::vector<std::string> known{"none", "add", "mul", "max", "min"};
  call.require(std::find(known.begin(), known.end(), reduction) != known.end(),
               "reduction of none, add, mul, max or min", reduction);
  call.require_rank(0, 1, 64);
  if (call.op() == Op::ScatterElements) {
    const size_t axis = call.axis(call.attr_int("axis"), data.rank());
    call.require_rank(1, data.rank(), data.rank());
    call.require_dims(2, indices.dims);
    for (size_t i = 0; i < data.dims.size(); ++i) {
      call.require(i == axis || is_at_least(data.dims[i] - indices.dims[i], 0),
                   "indices within " + data.str() + " beside the axis", indices.str());
    }
    return {data};
  }
  call.require_rank(1, 1, 64);
  const Dim& depth = indices.dims.back();
  call.require(depth.is_static() && depth.value() >= 0 && depth.value() <= data.rank(),
               "indices whose last dim is at most the rank of " + data.str(), indices.str());
  Dims dims(indices.dims.begin(), indices.dims.end() - 1);
  dims.insert(dims.end(), data.dims.begin() + depth.value(), data.dims.end());
  call.require(updates.dims == dims, "updates of shape " + dims_str(dims), updates.str());
  return {data};
}

Types infer_rotary(const InferCall& call) {
  const TensorType& x = call.in(0);
  call.require_floating(0);
  call.require_rank(0, 3, 4);
  call.require_same_dtype(0, 1);
  call.require_same_dtype(0, 2);
  call.attr_flag("interleaved");
  const int64_t heads = call.attr_int("num_heads");
  Dim head_size = x.dims.back();
  if (x.rank() == 3) {
    call.require(heads > 0, "num_heads with an input of rank 3", std::to_string(heads));
    head_size = head_size.floor_div(heads);
    call.require(head_size * heads == x.dims.back(), "a last dim that num_heads divides", x.str());
  }
  const int64_t part = call.attr_int("rotary_embedding_dim");
  const Dim rotated = part > 0 ? Dim(part) : head_size;
  const Dim half = rotated.floor_div(2);
  call.require(half * 2 == rotated && (part <= 0 || is_at_least(head_size - part, 0)),
               "an even rotated size within the head", rotated.str() + " of " + head_size.str());
  const Dim& length = x.rank() == 4 ? x.dims[2] : x.dims[1];
  const bool has_positions = call.has(3);
  call.require_rank(1, has_positions ? 2 : 3, has_positions ? 2 : 3);
  const Dims cache = has_positions ? Dims{call.in(1).dims[0], half} : Dims{x.dims[0], length, half};
  call.require_dims(1, cache);
  call.require_dims(2, cache);
  if (has_positions) {
    call.require_index(3);
    call.require_dims(3, {x.dims[0], length});
  }
  return {x};
}

Types infer_normalisation(const InferCall& call) {
  const TensorType& x = call.in(0);
  call.require_floating(0);
  const auto require_channels = [&call, &x](size_t first, size_t count) {
    for (size_t i = first; i < first + count; ++i) {
      call.require_floating(i);
      call.require_dims(i, {x.dims[1]});
    }
  };
  switch (call.op()) {
    case Op::BatchNormalization:
      call.require_rank(0, 2, 64);
      require_channels(1, 4);
      call.require_same_dtype(1, 2);
      call.require_same_dtype(3, 4);
      break;
    case Op::InstanceNormalization:
    case Op::GroupNormalization:
      call.require_rank(0, call.op() == Op::InstanceNormalization ? 3 : 2, 64);
      require_channels(1, 2);
      call.require_same_dtype(0, 1);
      call.require_same_dtype(0, 2);
      if (call.op() == Op::GroupNormalization) {
        const int64_t groups = call.attr_int("num_groups");
        call.require(groups > 0 && x.dims[1].floor_div(groups) * groups == x.dims[1],
                     "num_groups that divides the channels of " + x.str(), std::to_string(groups));
      }
      break;
    case Op::LayerNormalization:
    case Op::RMSNormalization: {
      const size_t axis = call.axis(call.attr_int("axis"), x.rank());
      const Dims normalised(x.dims.begin() + static_cast<std::ptrdiff_t>(axis), x.dims.end());
      for (size_t i = 1; i < call.num_inputs(); ++i) {
        if (!call.has(i)) continue;
        call.require_floating(i);
        call.require_broadcasts_to(i, normalised);
      }
      break;
    }
    case Op::LRN:
      call.require_rank(0, 3, 64);
      call.require(call.attr_int("size") > 0, "a positive size", std::to_string(call.attr_int("size")));
      break;
    case Op::LpNormalization: {
      const int64_t p = call.attr_int("p");
      call.require(p == 1 || p == 2, "p of 1 or 2", std::to_string(p));
      [[fallthrough]];
    }
    default:
      call.axis(call.attr_int("axis"), x.rank());
  }
  return {x};
}

}  // namespace rlopt
