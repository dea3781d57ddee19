// Substitutions: pattern => replacement under conditions, parsed from the library text.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "library/expression.h"

namespace rlopt {

/// A malformed substitution, with its name, line and the reason.
class SubstitutionError : public ParseError {
 public:
  SubstitutionError(std::string name, int line, std::string reason);
  const std::string& name() const { return name_; }  // empty if the name was not read yet
  int line() const { return line_; }
  const std::string& reason() const { return reason_; }

 private:
  std::string name_;
  int line_;
  std::string reason_;
};

/// A tensor of a pattern or replacement. Substitution::tensors holds all of them, and lines refer to them by
/// slot.
struct TensorVariable {
  std::string name;      // empty for a literal
  bool starred = false;  // one tensor per member of the family
  bool is_new = false;   // defined by the replacement
  int producer = -1;     // line of the pattern (the replacement if is_new) that defines it; -1: an input
  std::optional<double> literal;  // `Mul(x, 0.5)`: any Constant with one element of this value
};

/// An attribute bound by the pattern.
struct AttributeVariable {
  std::string name;
  bool starred = false;
  AttrKind kind = AttrKind::Int;
};

/// "@a": the attributes of a node that its line does not mention.
struct RestVariable {
  std::string name;
  Op op = Op::Opaque;           // operator of the pattern line that binds it
  std::vector<int> attributes;  // their indices in that operator's schema
};

struct LineAttribute {
  int index = 0;  // in the operator's schema
  ExprPtr value;  // pattern: a variable binds or must agree, any other expression must be equal
};

/// `outs = Op(ins; attrs)`.
struct Line {
  enum class Kind : uint8_t {
    Plain,          // one node
    PerMember,      // one node per member of the family: starred outputs
    ReadsFamily,    // a variadic operator reads all members in order: z = Concat(y*)
    DefinesFamily,  // its outputs are the members in order: y* = Split(x)
  };
  static constexpr int kOmitted = -1;  // "_"

  Kind kind = Kind::Plain;
  Op op = Op::Opaque;
  std::vector<int> outs;  // slots of tensors, or kOmitted
  std::vector<int> ins;
  std::vector<LineAttribute> attrs;
  int rest = -1;  // index in Substitution::rests
  int line = 0;   // in the text
};

/// An output of the pattern and its replacement.
struct Output {
  int old_slot = 0;
  int new_slot = 0;  // defined by the replacement, or any tensor of the pattern (`y = x`)
};

struct Substitution {
  std::string name;
  std::string doc;     // the comment lines just above
  std::string family;  // from the last comment "# family: <name>" before it
  bool exact = false;  // bit-exact, also for NaN, Inf, -0
  bool has_family = false;
  int line = 0;
  std::string proof;  // text after "proof"
  std::vector<TensorVariable> tensors;
  std::vector<AttributeVariable> attributes;
  std::vector<RestVariable> rests;
  std::vector<Line> pattern;
  std::vector<Line> replacement;
  std::vector<ExprPtr> conditions;
  std::vector<Output> outputs;
  std::string text;        // canonical print
  uint64_t text_hash = 0;  // of all substitutions expanded from one text, without their proofs
};

/// Throws SubstitutionError with the substitution, the line and the reason: unbound names, unknown operators
/// or attributes, arity, types of expressions, use before definition, unconnected patterns, duplicate names
/// of substitutions.
std::vector<Substitution> parse_substitutions(const std::string& text);
/// Prints without comments; `parse_substitutions` reads it back to an equal substitution.
std::string print_substitution(const Substitution& substitution);
/// Content hash: independent of order, comments and proofs (a proof does not affect what is computed).
uint64_t library_hash(const std::vector<Substitution>& library);

}  // namespace rlopt
