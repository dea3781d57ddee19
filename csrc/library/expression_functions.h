// The two halves of the function table; internal to expression_*.cpp.
#pragma once

#include "library/expression.h"

namespace rlopt {

/// Functions that look at tensors.
std::vector<Function> tensor_functions();
/// Position of `index` among `size` entries, negative ones counted from the end; nothing outside, or when
/// symbolic.
std::optional<size_t> list_position(const Bound& index, size_t size);

}  // namespace rlopt
