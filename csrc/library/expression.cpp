#include "library/expression.h"

#include <cmath>

namespace rlopt {

namespace {

Bound unknown() { return {}; }

/// Evaluates one expression tree; recursion depth is bounded by the parser.
class Evaluator {
 public:
  Evaluator(const Graph& graph, const Binding& binding, int num_members)
      : graph_(graph), binding_(binding), num_members_(num_members) {}

  Bound operator()(const Expr& expr, int member) const {
    switch (expr.kind) {
      case Expr::Kind::Int:
        return {Dim(expr.int_value)};
      case Expr::Kind::Float:
        return {expr.float_value};
      case Expr::Kind::String:
        return {expr.text};
      case Expr::Kind::List: {
        BoundList list;
        list.reserve(expr.args.size());
        for (const auto& arg : expr.args) {
          list.push_back((*this)(*arg, member));
          if (list.back().is_unknown()) return unknown();
        }
        return {std::move(list)};
      }
      case Expr::Kind::Variable:
        return variable(expr, member);
      case Expr::Kind::Call:
        return call(expr, member);
      case Expr::Kind::Not: {
        const Bound value = (*this)(*expr.args[0], member);
        const bool* flag = std::get_if<bool>(&value.value);
        return flag == nullptr ? unknown() : Bound{!*flag};
      }
      case Expr::Kind::Negate: {
        const Bound value = (*this)(*expr.args[0], member);
        if (const auto* real = std::get_if<double>(&value.value)) return {-*real};
        return binary(BinaryOp::Sub, {Dim(0)}, value);
      }
      case Expr::Kind::Binary:
        return evaluate_binary(expr, member);
      case Expr::Kind::Index: {
        const Bound list = (*this)(*expr.args[0], member);
        const Bound index = (*this)(*expr.args[1], member);
        return at(list, index);
      }
      case Expr::Kind::Gather: {
        BoundList list;
        for (int m = 0; m < num_members_; ++m) {
          list.push_back((*this)(*expr.args[0], m));
          if (list.back().is_unknown()) return unknown();
        }
        return {std::move(list)};
      }
    }
    return unknown();
  }

 private:
  Bound variable(const Expr& expr, int member) const {
    const int which = expr.starred ? member : -1;
    if (expr.is_tensor) {
      const Value value = binding_.tensor(expr.slot, which);
      return value == Binding::kUnbound ? unknown() : Bound{value};
    }
    const AttrValue* value = binding_.attribute(expr.slot, which);
    return value == nullptr ? unknown() : to_bound(*value);
  }

  Bound call(const Expr& expr, int member) const {
    std::vector<Bound> args;
    args.reserve(expr.args.size());
    for (const auto& arg : expr.args) {
      args.push_back((*this)(*arg, member));
      if (args.back().is_unknown()) return unknown();
    }
    return expr.function->call({graph_}, args);
  }

  /// Kleene logic: a false operand decides `&&` and a true one `||`, even if the other is unknown.
  Bound evaluate_binary(const Expr& expr, int member) const {
    const Bound left = (*this)(*expr.args[0], member);
    if (expr.op == BinaryOp::And || expr.op == BinaryOp::Or) {
      const bool decides = expr.op == BinaryOp::Or;
      if (left == Bound{decides}) return left;
      const Bound right = (*this)(*expr.args[1], member);
      if (right == Bound{decides}) return right;
      return left.is_unknown() ? left : right;
    }
    return binary(expr.op, left, (*this)(*expr.args[1], member));
  }

  static Bound at(const Bound& list, const Bound& index) {
    const auto* items = std::get_if<BoundList>(&list.value);
    const auto* where = std::get_if<Dim>(&index.value);
    if (items == nullptr || where == nullptr || !where->is_static()) return unknown();
    const auto size = static_cast<int64_t>(items->size());
    const int64_t i = where->value() < 0 ? where->value() + size : where->value();
    return i < 0 || i >= size ? unknown() : (*items)[static_cast<size_t>(i)];
  }

  const Graph& graph_;
  const Binding& binding_;
  int num_members_;
};

std::optional<double> to_double(const Bound& value) {
  if (const auto* real = std::get_if<double>(&value.value)) return *real;
  const auto* dim = std::get_if<Dim>(&value.value);
  if (dim != nullptr && dim->is_static()) return static_cast<double>(dim->value());
  return std::nullopt;
}

Bound compare(BinaryOp op, int sign) {
  switch (op) {
    case BinaryOp::Less:
      return {sign < 0};
    case BinaryOp::LessEqual:
      return {sign <= 0};
    case BinaryOp::Greater:
      return {sign > 0};
    default:
      return {sign >= 0};
  }
}

Bound dim_arithmetic(BinaryOp op, const Dim& a, const Dim& b) {
  switch (op) {
    case BinaryOp::Add:
      return {a + b};
    case BinaryOp::Sub:
      return {a - b};
    case BinaryOp::Mul:
      return {a * b};
    case BinaryOp::Div:
      return b == Dim(0) ? unknown() : Bound{a.floor_div(b)};
    default:
      return b == Dim(0) ? unknown() : Bound{a - a.floor_div(b) * b};
  }
}

Bound real_arithmetic(BinaryOp op, double a, double b) {
  switch (op) {
    case BinaryOp::Add:
      return {a + b};
    case BinaryOp::Sub:
      return {a - b};
    case BinaryOp::Mul:
      return {a * b};
    case BinaryOp::Div:
      return b == 0 ? unknown() : Bound{a / b};
    default:
      return b == 0 ? unknown() : Bound{std::fmod(a, b)};
  }
}

}  // namespace

std::optional<int> compare_dims(const Dim& a, const Dim& b) {
  if (a.is_static() && b.is_static()) return a.value() < b.value() ? -1 : (a.value() > b.value() ? 1 : 0);
  Dim difference;
  try {
    difference = a - b;
  } catch (const TypeError&) {  // beyond 64 bits
    return std::nullopt;
  }
  if (difference.is_static()) return compare_dims(difference, 0);
  // Symbols are >= 0: if all coefficients and the constant have the same sign, so has the difference.
  bool all_positive = true, all_negative = true, has_constant = false;
  for (const auto& [monomial, coefficient] : difference.polynomial()) {
    has_constant |= monomial.empty();
    (coefficient > 0 ? all_negative : all_positive) = false;
  }
  if (has_constant && all_positive) return 1;
  if (has_constant && all_negative) return -1;
  return std::nullopt;
}

bool nearly_equal(double a, double b) {
  if (a == b) return true;
  // Any number would be within a relative tolerance of infinity.
  return std::isfinite(a) && std::isfinite(b) &&
         std::fabs(a - b) <= 1e-6 * std::max(std::fabs(a), std::fabs(b));
}

bool is_literal(double number, double literal, DType dtype) {
  if (nearly_equal(number, literal)) return true;
  if (dtype != DType::bf16 && dtype != DType::f16) return false;
  const double scale = dtype == DType::bf16 ? 0x1p8 : 0x1p11;  // significant bits
  int exponent = 0;
  const double mantissa = std::frexp(literal, &exponent);
  return nearly_equal(number, std::ldexp(std::nearbyint(mantissa * scale) / scale, exponent));
}

std::optional<bool> bounds_equal(const Bound& a, const Bound& b) {
  if (a.is_unknown() || b.is_unknown()) return std::nullopt;
  const auto *left = std::get_if<Dim>(&a.value), *right = std::get_if<Dim>(&b.value);
  if (left != nullptr && right != nullptr) {
    const auto sign = compare_dims(*left, *right);
    return sign ? std::optional<bool>(*sign == 0) : std::nullopt;
  }
  const auto *first = std::get_if<BoundList>(&a.value), *second = std::get_if<BoundList>(&b.value);
  if (first != nullptr && second != nullptr) {
    if (first->size() != second->size()) return false;
    std::optional<bool> all = true;
    for (size_t i = 0; i < first->size(); ++i) {
      const auto one = bounds_equal((*first)[i], (*second)[i]);
      if (one && !*one) return false;
      if (!one) all = std::nullopt;
    }
    return all;
  }
  if (left != nullptr || right != nullptr) {
    const auto x = to_double(a), y = to_double(b);
    return x && y ? std::optional<bool>(*x == *y) : std::nullopt;
  }
  return a == b;
}

Bound binary(BinaryOp op, const Bound& a, const Bound& b) {
  if (op == BinaryOp::Equal || op == BinaryOp::NotEqual) {
    const auto equal = bounds_equal(a, b);
    return equal ? Bound{*equal == (op == BinaryOp::Equal)} : unknown();
  }
  const bool is_comparison = op >= BinaryOp::Less && op <= BinaryOp::GreaterEqual;
  const auto *left = std::get_if<Dim>(&a.value), *right = std::get_if<Dim>(&b.value);
  if (left != nullptr && right != nullptr) {
    if (!is_comparison) return dim_arithmetic(op, *left, *right);
    const auto sign = compare_dims(*left, *right);
    return sign ? compare(op, *sign) : unknown();
  }
  const auto x = to_double(a), y = to_double(b);
  if (!x || !y || std::isnan(*x) || std::isnan(*y)) return unknown();
  if (is_comparison) return compare(op, *x < *y ? -1 : (*x > *y ? 1 : 0));
  return real_arithmetic(op, *x, *y);
}

Bound evaluate(const Expr& expr, const Graph& graph, const Binding& binding, int num_members, int member) {
  try {
    return Evaluator(graph, binding, num_members)(expr, member);
  } catch (const TypeError&) {  // a size beyond 64 bits
    return unknown();
  }
}

Bound to_bound(const AttrValue& value) {
  if (const auto* number = std::get_if<int64_t>(&value)) return {Dim(*number)};
  if (const auto* real = std::get_if<double>(&value)) return {*real};
  if (const auto* text = std::get_if<std::string>(&value)) return {*text};
  BoundList list;
  if (const auto* ints = std::get_if<Ints>(&value)) {
    for (const int64_t each : *ints) list.push_back({Dim(each)});
  } else {
    for (const double each : std::get<Floats>(value)) list.push_back({each});
  }
  return {std::move(list)};
}

std::optional<AttrValue> to_attribute(const Bound& value, AttrKind kind) {
  const auto* dim = std::get_if<Dim>(&value.value);
  const auto* list = std::get_if<BoundList>(&value.value);
  switch (kind) {
    case AttrKind::Int:
      if (const bool* flag = std::get_if<bool>(&value.value)) return AttrValue(int64_t{*flag});
      return dim != nullptr && dim->is_static() ? std::optional<AttrValue>(dim->value()) : std::nullopt;
    case AttrKind::Float: {
      const auto real = to_double(value);
      return real ? std::optional<AttrValue>(*real) : std::nullopt;
    }
    case AttrKind::String: {
      const auto* text = std::get_if<std::string>(&value.value);
      return text != nullptr ? std::optional<AttrValue>(*text) : std::nullopt;
    }
    case AttrKind::Ints: {
      if (list == nullptr) return std::nullopt;
      Ints ints;
      for (const Bound& each : *list) {
        const auto* number = std::get_if<Dim>(&each.value);
        if (number == nullptr || !number->is_static()) return std::nullopt;
        ints.push_back(number->value());
      }
      return ints;
    }
    case AttrKind::Floats: {
      if (list == nullptr) return std::nullopt;
      Floats floats;
      for (const Bound& each : *list) {
        const auto real = to_double(each);
        if (!real) return std::nullopt;
        floats.push_back(*real);
      }
      return floats;
    }
  }
  return std::nullopt;
}

std::string bound_str(const Bound& value) {
  if (const bool* flag = std::get_if<bool>(&value.value)) return *flag ? "true" : "false";
  if (const auto* dim = std::get_if<Dim>(&value.value)) return dim->str();
  if (const auto* real = std::get_if<double>(&value.value)) return attr_str(*real);
  if (const auto* text = std::get_if<std::string>(&value.value)) return attr_str(*text);
  if (const auto* tensor = std::get_if<Value>(&value.value)) {
    return "node " + std::to_string(tensor->node) + "." + std::to_string(tensor->index);
  }
  if (const auto* list = std::get_if<BoundList>(&value.value)) {
    std::string text = "[";
    for (size_t i = 0; i < list->size(); ++i) text += (i > 0 ? "," : "") + bound_str((*list)[i]);
    return text + "]";
  }
  return "unknown";
}

std::optional<double> scalar_constant(const Graph& graph, Value value) {
  const Node& node = graph.node(value.node);
  if (node.op != Op::Constant) return std::nullopt;
  for (const Dim& dim : graph.type(value).dims) {
    if (!(dim == Dim(1))) return std::nullopt;
  }
  const auto& floats = std::get<Floats>(node.attr("value"));
  if (floats.size() == 1) return floats[0];
  const Ints& ints = node.attr_ints("int_value");
  if (ints.size() != 1) return std::nullopt;
  const auto number = static_cast<double>(ints[0]);
  return std::fabs(number) < kMaxExactInteger ? std::optional<double>(number) : std::nullopt;
}

}  // namespace rlopt
