// The syntax tree of substitution text, before names are resolved and checked.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "library/substitution.h"

namespace rlopt::syntax {

/// "x", "w*", "b?", "_" or a number in the place of an input.
struct Tensor {
  std::string name;
  bool starred = false;
  bool is_optional = false;  // gone after `expand`
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
  std::vector<std::pair<std::string, ExprPtr>> lets;  // gone after `expand`
  std::vector<ExprPtr> conditions;
  std::string proof;
};

/// Reads tokens one by one; errors name the substitution that is being read.
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

  std::string substitution;  // name of the one being read

 private:
  std::vector<Token> tokens_;
  size_t pos_ = 0;
};

/// Operands and operators of one expression, definitions put in.
inline constexpr size_t kMaxExpression = 500;
inline constexpr const char* kTooLarge = "an expression of more than 500 operands and operators";

/// One expression; it ends with its line except inside brackets or around `&&` and `||`.
/// Variables are left unresolved (slot -1), types Any.
ExprPtr read_expression(Reader& reader);

/// Puts in the definitions of `let`; one substitution for each choice of the optional inputs, those without
/// input `b` named
/// `<name>_no_b` and without the conditions on it.
std::vector<Substitution> expand(const Substitution& raw);
/// Resolves names and types, and makes all the checks.
rlopt::Substitution resolve(const Substitution& raw);
/// The pattern hangs together, and its family is held together by something.
void check_whole(const rlopt::Substitution& s, int first_line);

}  // namespace rlopt::syntax
