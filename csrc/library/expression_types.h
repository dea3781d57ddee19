// Resolves the variables of an expression and checks its types.
#pragma once

#include <functional>

#include "library/substitution_syntax.h"

namespace rlopt::syntax {

/// What a name in an expression stands for.
struct Symbol {
  bool is_tensor = false;
  int slot = -1;
  ExprType type = ExprType::Any;
};
/// Finds (name, starred); a Symbol with slot -1 when there is none.
using Lookup = std::function<Symbol(const std::string& name, bool starred)>;

/// The typed, resolved expression. A starred scalar in the place of a list becomes the list over members.
/// Throws SubstitutionError(substitution, line, reason).
ExprPtr resolve_expression(const ExprPtr& raw, const Lookup& lookup, const std::string& substitution);
/// The same, for a place that asks for `wanted`.
ExprPtr resolve_expression(const ExprPtr& raw, const Lookup& lookup, const std::string& substitution,
                           ExprType wanted, const std::string& place);

ExprType type_of_attribute(AttrKind kind);

}  // namespace rlopt::syntax
