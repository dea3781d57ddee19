// Types of operators that select by index, or produce shapes and constants.
#include <algorithm>

#include "infer/rules.h"

namespace rlopt {

Types infer_gather(const InferCall& call) {
  const TensorType& x = call.in(0);
  const Dims& indices = call.in(1).dims;
  call.require_index(1);
  const auto axis = static_cast<std::ptrdiff_t>(call.axis(call.attr_int("axis"), x.rank()));
  TensorType type{x.dtype, true, Dims(x.dims.begin(), x.dims.begin() + axis)};
  type.dims.insert(type.dims.end(), indices.begin(), indices.end());
  type.dims.insert(type.dims.end(), x.dims.begin() + axis + 1, x.dims.end());
  return {type};
}

Types infer_gather_elements(const InferCall& call) {
  const TensorType& x = call.in(0);
  const TensorType& indices = call.in(1);
  call.require_index(1);
  const size_t axis = call.axis(call.attr_int("axis"), x.rank());
  call.require_rank(1, x.rank(), x.rank());
  for (size_t i = 0; i < x.dims.size(); ++i) {
    call.require(i == axis || is_at_least(x.dims[i] - indices.dims[i], 0),
                 "indices within " + x.str() + " beside the axis", indices.str());
  }
  return {{x.dtype, true, indices.dims}};
}

Types infer_gather_nd(const InferCall& call) {
  const TensorType& x = call.in(0);
  const TensorType& indices = call.in(1);
  call.require_index(1);
  const int64_t batch = call.attr_int("batch_dims");
  call.require(batch >= 0 && batch < std::min(x.rank(), indices.rank()), "batch_dims below both ranks",
               std::to_string(batch));
  const bool has_equal_batch = std::equal(x.dims.begin(), x.dims.begin() + batch, indices.dims.begin());
  call.require(has_equal_batch, "equal batch dims", x.str() + " and " + indices.str());
  const Dim& depth = indices.dims.back();
  call.require(depth.is_static() && depth.value() >= 1 && depth.value() <= x.rank() - batch,
               "indices whose last dim is 1 to " + std::to_string(x.rank() - batch), indices.str());
  TensorType type{x.dtype, true, Dims(indices.dims.begin(), indices.dims.end() - 1)};
  type.dims.insert(type.dims.end(), x.dims.begin() + batch + depth.value(), x.dims.end());
  return {type};
}

Types infer_shape(const InferCall& call) {
  const int64_t rank = call.in(0).rank();
  const auto clamp = [rank](int64_t bound) {
    return std::clamp<int64_t>(bound < 0 ? bound + rank : bound, 0, rank);
  };
  const int64_t length = clamp(call.attr_int("end")) - clamp(call.attr_int("start"));
  return {{DType::i64, true, {std::max<int64_t>(length, 0)}}};
}

Types infer_size(const InferCall&) { return {{DType::i64, true, {}}}; }

Types infer_constant_of_shape(const InferCall& call) {
  const Ints& shape = call.attr_ints("shape");
  const bool is_size = std::all_of(shape.begin(), shape.end(), [](int64_t d) { return d >= 0; });
  call.require(is_size, "sizes of at least 0 in shape", ints_str(shape));
  const std::string& name = call.attr_string("dtype");
  try {
    return {{parse_dtype(name), true, Dims(shape.begin(), shape.end())}};
  } catch (const ParseError&) {
    call.fail("a dtype name", "\"" + name + "\"");
  }
}

}  // namespace rlopt
