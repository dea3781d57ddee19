// The two halves of the function table; internal to expression_*.cpp.
#pragma once

#include "library/expression.h"

namespace rlopt {

/// Functions of tensors.
std::vector<Function> tensor_functions();
/// Position of `index` among `size` entries; negative ones count from the end. Nothing if out of range or
/// symbolic.
std::optional<size_t> list_position(const Bound& index, size_t size);

}  // namespace rlopt
