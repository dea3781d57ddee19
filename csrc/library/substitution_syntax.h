// The syntax tree of substitution text, before names are resolved and checked.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "library/substitution.h"

namespace rlopt::syntax {

/// "x", "w*", "b?", "_" or a number as an input.
struct Tensor {
  std::string name;
  bool starred = false;
  bool is_optional = false;  // false after `expand`
  std::optional<double> literal;
};

/// `outs = Op(ins; attrs, @rest)`, or `y = x` with an empty `op` and one input.
struct Line {
  std::vector<Tensor> outs;
  std::string op;
  std::vector<Tensor> ins;
  std::vector<std::pair<std::string, ExprPtr>> attrs;
  std::string rest;
  int line = 0;
};

struct Substitution {
  std::string name;
  std::string doc;
  std::string family;
  bool exact = false;
  int line = 0;
  std::vector<Line> pattern;
  std::vector<Line> replacement;
  std::vector<std::pair<std::string, ExprPtr>> lets;  // empty after `expand`
  std::vector<ExprPtr> conditions;
  std::string proof;
};

/// Reads tokens one by one; errors contain the name of the current substitution.
class Reader {
 public:
  explicit Reader(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& peek(size_t ahead = 0) const { return tokens_[std::min(pos_ + ahead, tokens_.size() - 1)]; }
  Token next();
  bool at_end() const { return peek().kind == TokenKind::End; }
  bool is_symbol(const std::string& symbol, size_t ahead = 0) const;
  bool is_name(const std::string& name, size_t ahead = 0) const;
  bool take(const std::string& symbol);
  void expect(const std::string& symbol, const std::string& place);
  [[noreturn]] void fail(const std::string& reason) const;
  [[noreturn]] void fail(const std::string& reason, int line) const;

  std::string substitution;  // name of the current one

 private:
  std::vector<Token> tokens_;
  size_t pos_ = 0;
};

/// Maximum operands and operators of one expression, after inlining definitions.
inline constexpr size_t kMaxExpression = 500;
inline constexpr const char* kTooLarge = "an expression of more than 500 operands and operators";

/// Reads one expression; it ends with its line except inside brackets or around `&&` and `||`. Variables are
/// left unresolved (slot -1), types Any.
ExprPtr read_expression(Reader& reader);

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

/// Inlines `let` definitions and returns one substitution for each choice of the optional inputs. Those
/// without input `b` are named `<name>_no_b` and lack the conditions on it.
std::vector<Substitution> expand(const Substitution& raw);
/// Resolves names and types, and runs all checks.
rlopt::Substitution resolve(const Substitution& raw);

}  // namespace rlopt::syntax
