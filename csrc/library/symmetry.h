// Symmetries of substitutions: renamings that leave a substitution what it is.
#pragma once

#include <vector>

#include "library/substitution.h"

namespace rlopt {

/// Line i stands where line `lines[i]` stood, tensor v where `tensors[v]` stood. Both matches lead to the
/// same graph up to the order of commutative operands, so one of them is enough.
struct Symmetry {
  std::vector<int> lines;
  std::vector<int> tensors;
};

/// All but the identity; none for substitutions with a family, whose members have an order of their own.
std::vector<Symmetry> find_symmetries(const Substitution& substitution);

}  // namespace rlopt
