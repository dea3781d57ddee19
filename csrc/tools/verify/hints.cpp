// Extracts hints about single variables from conditions, and applies them to drafts.
#include <algorithm>

#include "tools/verify/draw.h"

namespace rlopt {

namespace {

bool is_tensor(const Expr& expr) { return expr.kind == Expr::Kind::Variable && expr.is_tensor; }
bool is_attribute(const Expr& expr) { return expr.kind == Expr::Kind::Variable && !expr.is_tensor; }

std::optional<int64_t> as_int(const Bound& value) {
  const auto attr = to_attribute(value, AttrKind::Int);
  return attr ? std::optional<int64_t>(std::get<int64_t>(*attr)) : std::nullopt;
}

ExprPtr shape_of(const ExprPtr& tensor) {
  auto call = std::make_shared<Expr>();
  call->kind = Expr::Kind::Call;
  call->text = "shape";
  call->function = find_function("shape");
  call->type = ExprType::List;
  call->starred = tensor->starred;
  call->args = {tensor};
  return call;
}

class Finder {
 public:
  explicit Finder(Random& random) : random_(random) {}

  void condition(const ExprPtr& expr) {
    if (expr->kind == Expr::Kind::Binary) {
      const ExprPtr &left = expr->args[0], &right = expr->args[1];
      if (expr->op == BinaryOp::And) {
        condition(left);
        condition(right);
      } else if (expr->op == BinaryOp::Or) {
        condition(random_.chance(0.5) ? left : right);
      } else if (expr->op == BinaryOp::Equal) {
        equal(left, right);
        equal(right, left);
      } else if (expr->op == BinaryOp::GreaterEqual || expr->op == BinaryOp::LessEqual) {
        // The bound itself is a likely value.
        if (random_.chance(0.3)) equal(left, right);
      }
    } else if (expr->kind == Expr::Kind::Call) {
      call(*expr);
    }
  }

  std::vector<Hint> take() { return std::move(hints_); }

 private:
  void add(Hint::Target target, const Expr& variable, ExprPtr expr = nullptr, ExprPtr index = nullptr) {
    hints_.push_back({target, variable.slot, std::move(index), std::move(expr), of_first_});
  }

  void call(const Expr& expr) {
    const Expr& first = *expr.args[0];
    const bool is_static = expr.text == "is_static" || expr.text == "is_weight";
    if (is_static && is_tensor(first)) add(Hint::Target::Static, first);
    if ((expr.text == "is_constant" || expr.text == "is_scalar") && is_tensor(first)) {
      add(Hint::Target::Constant, first);
    }
    if (expr.text == "same_shape") {
      for (const size_t i : {size_t{0}, size_t{1}}) {
        if (is_tensor(*expr.args[i])) add(Hint::Target::Shape, *expr.args[i], shape_of(expr.args[1 - i]));
      }
    }
    if (expr.text == "broadcasts_to" && is_tensor(first)) {
      add(Hint::Target::BroadcastsTo, first, shape_of(expr.args[1]));
    }
    if (expr.text == "same") {
      const ExprPtr& each = first.args[0];  // same(Gather(each))
      of_first_ = true;
      equal(each, each);
      of_first_ = false;
    }
    if (expr.text == "close") equal(expr.args[0], expr.args[1]);
    if (expr.text == "all_equal") {
      const Expr* list = &first;
      if (list->kind == Expr::Kind::Call && list->text == "default") list = list->args[0].get();
      if (is_attribute(*list)) add(Hint::Target::AllEqual, *list, expr.args[1]);
    }
  }

  void equal(const ExprPtr& target, const ExprPtr& value) {
    if (is_attribute(*target)) add(Hint::Target::Attribute, *target, value);
    if (target->kind != Expr::Kind::Call) return;
    const ExprPtr& first = target->args[0];
    const std::string& name = target->text;
    if (is_attribute(*first) &&
        (name == "default" || name == "norm_axis" || name == "norm_axes" || name == "perm_default")) {
      add(Hint::Target::Attribute, *first, value);
    }
    if (!is_tensor(*first)) return;
    if (name == "rank") add(Hint::Target::Rank, *first, value);
    if (name == "dim") add(Hint::Target::Dim, *first, value, target->args[1]);
    if (name == "shape") add(Hint::Target::Shape, *first, value);
    if (name == "value") add(Hint::Target::Value, *first, value);
    if (name == "dtype") add(Hint::Target::DType, *first, value);
  }

  Random& random_;
  bool of_first_ = false;
  std::vector<Hint> hints_;
};

}  // namespace

std::vector<Hint> find_hints(const Substitution& substitution, Random& random) {
  Finder finder(random);
  for (const ExprPtr& condition : substitution.conditions) finder.condition(condition);
  std::vector<Hint> hints = finder.take();
  // A static value requires static operands.
  for (size_t i = 0; i < hints.size(); ++i) {
    if (hints[i].target != Hint::Target::Static) continue;
    const int producer = substitution.tensors[at(hints[i].slot)].producer;
    if (producer < 0) continue;
    for (const int slot : substitution.pattern[at(producer)].ins) {
      if (slot != Line::kOmitted) hints.push_back({Hint::Target::Static, slot, nullptr, nullptr, false});
    }
  }
  return hints;
}

void Drawer::hint_attributes(const Task& task, const State& state, Draft& draft) const {
  const PatternLine& line = pattern_.lines[at(task.line)];
  const auto& specs = op_info(line.op).attrs;
  for (const PatternCheck& check : pattern_.checks) {
    if (check.line != task.line || draft.attrs[at(check.attribute)]) continue;
    const Bound value = evaluate_hint(state, {}, check.expr, task.member);
    if (const auto attr = to_attribute(value, specs[at(check.attribute)].kind))
      draft.attrs[at(check.attribute)] = attr;
  }
  for (const auto& [index, slot] : line.bound_attrs) {
    for (const Hint& hint : hints_) {
      if (draft.attrs[at(index)] || hint.slot != slot) continue;
      if (hint.target != Hint::Target::Attribute && hint.target != Hint::Target::AllEqual) continue;
      const Bound value = evaluate_hint(state, hint, hint.expr, task.member);
      if (hint.target == Hint::Target::Attribute) {
        if (const auto attr = to_attribute(value, specs[at(index)].kind)) draft.attrs[at(index)] = attr;
      } else if (const auto number = as_int(value)) {
        draft.all_equal[specs[at(index)].name] = *number;
      }
    }
  }
}

InputHint Drawer::input_hint(const State& state, const Place& place) const {
  InputHint result;
  for (const Hint& hint : hints_) {
    if (hint.slot != place.slot || hint.target >= Hint::Target::Attribute) continue;
    const Bound value = evaluate_hint(state, hint, hint.expr, place.member);
    switch (hint.target) {
      case Hint::Target::Rank:
        if (const auto rank = as_int(value)) result.rank = static_cast<int>(*rank);
        break;
      case Hint::Target::Dim: {
        const auto size = as_int(value), index = as_int(evaluate_hint(state, hint, hint.index, place.member));
        if (size && index) result.dims.emplace_back(*index, *size);
        break;
      }
      case Hint::Target::Shape:
      case Hint::Target::BroadcastsTo: {
        const auto shape = to_attribute(value, AttrKind::Ints);
        if (!shape) break;
        (hint.target == Hint::Target::Shape ? result.shape : result.broadcasts_to) = std::get<Ints>(*shape);
        break;
      }
      case Hint::Target::DType:
        if (const auto* name = std::get_if<std::string>(&value.value)) result.dtype = parse_dtype(*name);
        break;
      case Hint::Target::Value:
      case Hint::Target::Constant:
        result.shape = Ints{};
        break;
      default:
        break;
    }
  }
  return result;
}

bool Drawer::has_hint(Hint::Target target, int slot) const {
  return std::any_of(hints_.begin(), hints_.end(),
                     [&](const Hint& hint) { return hint.target == target && hint.slot == slot; });
}

std::optional<double> Drawer::value_hint(const State& state, const Place& place) const {
  for (const Hint& hint : hints_) {
    if (hint.target != Hint::Target::Value || hint.slot != place.slot) continue;
    const auto value = to_attribute(evaluate_hint(state, hint, hint.expr, place.member), AttrKind::Float);
    if (value) return std::get<double>(*value);
  }
  return std::nullopt;
}

Bound Drawer::evaluate_hint(const State& state, const Hint& hint, const ExprPtr& expr, int member) const {
  if (expr == nullptr || (hint.of_first && member <= 0)) return {};
  const int which = expr->starred ? (hint.of_first ? 0 : std::max(member, 0)) : -1;
  return evaluate(*expr, state.edit.graph(), state.binding, num_members_, which);
}

}  // namespace rlopt
