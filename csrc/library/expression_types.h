// Resolves the variables of an expression and checks its types.
#pragma once

#include <functional>

#include "library/substitution_syntax.h"

namespace rlopt::syntax {

/// The meaning of a name in an expression.
struct Symbol {
  bool is_tensor = false;
  int slot = -1;
  ExprType type = ExprType::Any;
};
/// Finds (name, starred); a Symbol with slot -1 if there is none.
using Lookup = std::function<Symbol(const std::string& name, bool starred)>;

/// Returns the typed, resolved expression. A starred scalar in place of a list becomes the list over members.
/// Throws SubstitutionError(substitution, line, reason).
ExprPtr resolve_expression(const ExprPtr& raw, const Lookup& lookup, const std::string& substitution);
/// The same if the context requires type `wanted`.
ExprPtr resolve_expression(const ExprPtr& raw, const Lookup& lookup, const std::string& substitution,
                           ExprType wanted, const std::string& place);

ExprType type_of_attribute(AttrKind kind);

}  // namespace rlopt::syntax
