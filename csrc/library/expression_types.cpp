// Resolves the variables of expressions and checks their types.
#include "library/substitution_syntax.h"

namespace rlopt {

const char* expr_type_name(ExprType type) {
  static constexpr const char* kNames[] = {"an int",   "a float",  "a truth value", "a string", "a list",
                                           "a tensor", "a number", "a scalar",      "anything"};
  return kNames[at(type)];
}

namespace syntax {

namespace {

bool is_number(ExprType type) {
  return type == ExprType::Int || type == ExprType::Float || type == ExprType::Number ||
         type == ExprType::Scalar || type == ExprType::Any;
}

/// Whether a value of type `got` is allowed where `wanted` is required.
bool fits(ExprType got, ExprType wanted) {
  if (got == wanted || wanted == ExprType::Any || got == ExprType::Any) return true;
  if (wanted == ExprType::Scalar) return got != ExprType::List && got != ExprType::Tensor;
  if (got == ExprType::Scalar) return wanted != ExprType::List && wanted != ExprType::Tensor;
  if (got == ExprType::Number) return wanted == ExprType::Int || wanted == ExprType::Float;
  if (got == ExprType::Int) return wanted == ExprType::Float || wanted == ExprType::Number;
  return got == ExprType::Float && wanted == ExprType::Number;
}

class Resolver {
 public:
  Resolver(const Lookup& lookup, const std::string& substitution)
      : lookup_(lookup), substitution_(substitution) {}

  ExprPtr operator()(const ExprPtr& raw) const {
    auto expr = std::make_shared<Expr>(*raw);
    switch (raw->kind) {
      case Expr::Kind::Int:
        expr->type = ExprType::Int;
        return expr;
      case Expr::Kind::Float:
        expr->type = ExprType::Float;
        return expr;
      case Expr::Kind::String:
        expr->type = ExprType::String;
        return expr;
      case Expr::Kind::Variable:
        return variable(expr);
      case Expr::Kind::Call:
        return call(expr);
      case Expr::Kind::Not:
        expr->args = {want(raw->args[0], ExprType::Bool, "'!'")};
        expr->type = ExprType::Bool;
        break;
      case Expr::Kind::Negate:
        expr->args = {want(raw->args[0], ExprType::Number, "'-'")};
        expr->type = expr->args[0]->type;
        break;
      case Expr::Kind::Index:
        expr->args = {want(raw->args[0], ExprType::List, "[..]"),
                      want(raw->args[1], ExprType::Int, "an index")};
        expr->type = ExprType::Scalar;
        break;
      case Expr::Kind::List:
        for (auto& arg : expr->args) arg = want(arg, ExprType::Scalar, "a list");
        expr->type = ExprType::List;
        break;
      default:
        binary(*expr);
    }
    set_starred(*expr);
    return expr;
  }

  ExprPtr want(const ExprPtr& raw, ExprType wanted, const std::string& place) const {
    return lift((*this)(raw), wanted, place, false);
  }

 private:
  [[noreturn]] void fail(int line, const std::string& reason) const {
    throw SubstitutionError(substitution_, line, reason);
  }

  static void set_starred(Expr& expr) {
    for (const auto& arg : expr.args) expr.starred |= arg->starred;
  }

  /// Wraps an expression that has one value per member in a Gather if a list is required.
  ExprPtr lift(const ExprPtr& expr, ExprType wanted, const std::string& place, bool always) const {
    const bool is_list = expr->type == ExprType::List || expr->type == ExprType::Any;
    if (wanted == ExprType::List && expr->starred && (always || !is_list)) {
      auto gather = std::make_shared<Expr>();
      gather->kind = Expr::Kind::Gather;
      gather->type = ExprType::List;
      gather->line = expr->line;
      gather->args = {expr};
      return gather;
    }
    if (!fits(expr->type, wanted)) {
      fail(expr->line, place + " asks for " + expr_type_name(wanted) + ", but '" + print_expression(*expr) +
                           "' is " + expr_type_name(expr->type));
    }
    return expr;
  }

  ExprPtr variable(const std::shared_ptr<Expr>& expr) const {
    const Symbol symbol = lookup_(expr->text, expr->starred);
    if (symbol.slot < 0) {
      const bool other = lookup_(expr->text, !expr->starred).slot >= 0;
      const std::string shown = expr->text + (expr->starred ? "*" : "");
      fail(expr->line,
           "'" + shown + "' is not defined" +
               (other ? "; '" + expr->text + (expr->starred ? "" : "*") + "' is another name" : ""));
    }
    expr->slot = symbol.slot;
    expr->is_tensor = symbol.is_tensor;
    expr->type = symbol.type;
    return expr;
  }

  ExprPtr call(const std::shared_ptr<Expr>& expr) const {
    const Function* function = find_function(expr->text);
    if (function == nullptr) {
      std::string known;
      for (const auto& name : function_names()) known += (known.empty() ? "" : ", ") + name;
      fail(expr->line, "unknown function '" + expr->text + "'; there are " + known);
    }
    if (expr->args.size() != function->params.size()) {
      fail(expr->line, "function '" + expr->text + "' takes " + std::to_string(function->params.size()) +
                           " arguments, got " + std::to_string(expr->args.size()));
    }
    for (size_t i = 0; i < expr->args.size(); ++i) {
      const ExprPtr arg = (*this)(expr->args[i]);
      const bool gathers = function->gathers && i == 0;
      if (gathers && !arg->starred)
        fail(expr->line, "'" + expr->text + "' needs a starred argument, such as w*");
      expr->args[i] = lift(arg, function->params[i],
                           "argument " + std::to_string(i + 1) + " of '" + expr->text + "'", gathers);
    }
    expr->function = function;
    expr->type = function->result;
    set_starred(*expr);
    return expr;
  }

  void binary(Expr& expr) const {
    expr.type = ExprType::Bool;
    if (expr.op == BinaryOp::And || expr.op == BinaryOp::Or) {
      for (auto& arg : expr.args) arg = want(arg, ExprType::Bool, "'&&' and '||'");
      return;
    }
    for (auto& arg : expr.args) arg = (*this)(arg);
    ExprPtr &left = expr.args[0], &right = expr.args[1];
    if (expr.op == BinaryOp::Equal || expr.op == BinaryOp::NotEqual) {
      // `sizes == dim(w*, 0)`: compares a list with one number per member.
      if (left->type == ExprType::List && !left->starred) right = lift(right, ExprType::List, "'=='", false);
      if (right->type == ExprType::List && !right->starred) left = lift(left, ExprType::List, "'=='", false);
      if (!fits(left->type, right->type) && !fits(right->type, left->type)) {
        fail(expr.line, std::string("cannot compare ") + expr_type_name(left->type) + " with " +
                            expr_type_name(right->type));
      }
      return;
    }
    const bool compares = expr.op >= BinaryOp::Less && expr.op <= BinaryOp::GreaterEqual;
    for (const auto& arg : expr.args) {
      if (!is_number(arg->type)) {
        fail(arg->line, std::string(compares ? "order" : "arithmetic") + " asks for numbers, but '" +
                            print_expression(*arg) + "' is " + expr_type_name(arg->type));
      }
    }
    if (compares) return;
    const bool both_int = left->type == ExprType::Int && right->type == ExprType::Int;
    const bool has_float = left->type == ExprType::Float || right->type == ExprType::Float;
    expr.type = both_int ? ExprType::Int : (has_float ? ExprType::Float : ExprType::Number);
  }

  const Lookup& lookup_;
  const std::string& substitution_;
};

}  // namespace

ExprPtr resolve_expression(const ExprPtr& raw, const Lookup& lookup, const std::string& substitution) {
  return Resolver(lookup, substitution)(raw);
}

ExprPtr resolve_expression(const ExprPtr& raw, const Lookup& lookup, const std::string& substitution,
                           ExprType wanted, const std::string& place) {
  return Resolver(lookup, substitution).want(raw, wanted, place);
}

ExprType type_of_attribute(AttrKind kind) {
  constexpr ExprType kTypes[] = {ExprType::Int, ExprType::Float, ExprType::String, ExprType::List,
                                 ExprType::List};
  return kTypes[at(kind)];
}

}  // namespace syntax
}  // namespace rlopt
