// Parser of expressions: precedence climbing over the shared tokens.
#include <limits>

#include "library/substitution_syntax.h"

namespace rlopt::syntax {

namespace {

constexpr int kMaxDepth = 100;  // of brackets and signs; hostile text must not exhaust the stack

class ExpressionReader {
 public:
  explicit ExpressionReader(Reader& reader) : reader_(reader), line_(reader.peek().line) {}

  ExprPtr read(int min_precedence = 1) {
    if (++depth_ > kMaxDepth) reader_.fail("expression is nested too deeply");
    ExprPtr left = unary();
    while (const Operator* op = find_operator()) {
      if (op->precedence < min_precedence) break;
      const int line = take_token().line;
      ExprPtr right = read(op->precedence + 1);
      const bool is_comparison = op->precedence == 3;
      auto expr = make(Expr::Kind::Binary, line);
      expr->op = op->op;
      expr->args = {left, right};
      left = expr;
      if (is_comparison && find_operator() != nullptr && find_operator()->precedence == 3) {
        reader_.fail("comparisons do not chain; write a == b && b == c");
      }
    }
    --depth_;
    return left;
  }

 private:
  /// A chain such as a + b + c counts as deep as it is long: every traversal of the expression recurses that
  /// far.
  std::shared_ptr<Expr> make(Expr::Kind kind, int line) {
    if (++size_ > kMaxExpression) reader_.fail(kTooLarge, line);
    auto expr = std::make_shared<Expr>();
    expr->kind = kind;
    expr->line = line;
    return expr;
  }

  Token take_token() {
    const Token token = reader_.next();
    line_ = token.line;
    return token;
  }

  /// Whether the next token continues this expression: outside brackets a new line ends it.
  bool continues() const {
    return brackets_ > 0 || reader_.peek().line == line_ || reader_.is_symbol("&&") ||
           reader_.is_symbol("||");
  }

  const Operator* find_operator() const {
    if (!continues()) return nullptr;
    const bool is_mod = reader_.is_name("%");  // the shared lexer allows names to start with %
    for (const Operator& op : kOperators) {
      if (reader_.is_symbol(op.symbol) || (is_mod && op.op == BinaryOp::Mod)) return &op;
    }
    return nullptr;
  }

  ExprPtr unary() {
    const bool is_not = reader_.is_symbol("!");
    if (!is_not && !reader_.is_symbol("-")) return postfix();
    auto expr = make(is_not ? Expr::Kind::Not : Expr::Kind::Negate, take_token().line);
    if (++depth_ > kMaxDepth) reader_.fail("expression is nested too deeply");
    ExprPtr operand = unary();
    --depth_;
    if (!is_not && operand->kind == Expr::Kind::Int) return number(-operand->int_value, expr->line);
    if (!is_not && operand->kind == Expr::Kind::Float) return number(-operand->float_value, expr->line);
    expr->args = {operand};
    return expr;
  }

  ExprPtr number(int64_t value, int line) {
    auto expr = make(Expr::Kind::Int, line);
    expr->int_value = value;
    return expr;
  }
  ExprPtr number(double value, int line) {
    auto expr = make(Expr::Kind::Float, line);
    expr->float_value = value;
    return expr;
  }

  ExprPtr postfix() {
    ExprPtr expr = primary();
    while (reader_.is_symbol("[") && continues()) {
      auto index = make(Expr::Kind::Index, take_token().line);
      index->args = {expr, bracketed("]")};
      expr = index;
    }
    return expr;
  }

  ExprPtr bracketed(const std::string& close) {
    ++brackets_;
    ExprPtr expr = read();
    --brackets_;
    expect(close);
    return expr;
  }

  std::vector<ExprPtr> list(const std::string& close) {
    std::vector<ExprPtr> items;
    ++brackets_;
    while (!reader_.is_symbol(close)) {
      if (!items.empty()) expect(",");
      items.push_back(read());
    }
    --brackets_;
    expect(close);
    return items;
  }

  void expect(const std::string& symbol) {
    if (!reader_.is_symbol(symbol)) reader_.expect(symbol, "the expression");
    take_token();
  }

  ExprPtr primary() {
    const Token token = take_token();
    if (token.kind == TokenKind::Number) return literal(token);
    if (token.kind == TokenKind::String) {
      auto expr = make(Expr::Kind::String, token.line);
      expr->text = token.text;
      return expr;
    }
    if (token.kind == TokenKind::Symbol && token.text == "(") return bracketed(")");
    if (token.kind == TokenKind::Symbol && token.text == "[") {
      auto expr = make(Expr::Kind::List, token.line);
      expr->args = list("]");
      return expr;
    }
    if (token.kind != TokenKind::Name)
      reader_.fail("expected an expression, got '" + token.text + "'", token.line);
    if (token.text == "inf") return number(std::numeric_limits<double>::infinity(), token.line);
    const bool is_call = reader_.is_symbol("(") && continues();
    auto expr = make(is_call ? Expr::Kind::Call : Expr::Kind::Variable, token.line);
    expr->text = token.text;
    if (is_call) {
      take_token();
      expr->args = list(")");
    } else if (is_star()) {
      take_token();
      expr->starred = true;
    }
    return expr;
  }

  /// `w*` or `w * 2`: a star before an operand on the same line multiplies.
  bool is_star() const {
    if (!reader_.is_symbol("*") || !continues()) return false;
    const Token& after = reader_.peek(1);
    if (brackets_ == 0 && after.line != line_) return true;
    if (after.kind == TokenKind::Symbol) return after.text != "(" && after.text != "[";
    return after.kind == TokenKind::End || after.text == "%";
  }

  ExprPtr literal(const Token& token) {
    if (token.text.find_first_of(".eE") != std::string::npos) {
      if (const auto real = parse_real(token.text)) return number(*real, token.line);
    } else {
      if (const auto integer = parse_integer(token.text)) return number(*integer, token.line);
    }
    reader_.fail("'" + token.text + "' is not a number", token.line);
  }

  Reader& reader_;
  int line_;
  int brackets_ = 0;
  int depth_ = 0;
  size_t size_ = 0;
};

}  // namespace

ExprPtr read_expression(Reader& reader) { return ExpressionReader(reader).read(); }

}  // namespace rlopt::syntax
