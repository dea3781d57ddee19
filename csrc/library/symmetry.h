// Symmetries of substitutions: renamings that map a substitution to itself.
#pragma once

#include <vector>

#include "library/substitution.h"

namespace rlopt {

/// Line i takes the place of line `lines[i]`, tensor v that of `tensors[v]`. Both matches lead to the same
/// graph up to the order of commutative operands, so one of them is enough.
struct Symmetry {
  std::vector<int> lines;
  std::vector<int> tensors;
};

/// All except the identity; none for substitutions with a family, whose members have their own order.
std::vector<Symmetry> find_symmetries(const Substitution& substitution);

}  // namespace rlopt
