// Reads conditions for what they say about single variables.
#include "verify_draw.h"

namespace rlopt {

namespace {

bool is_tensor(const Expr& expr) { return expr.kind == Expr::Kind::Variable && expr.is_tensor; }
bool is_attribute(const Expr& expr) { return expr.kind == Expr::Kind::Variable && !expr.is_tensor; }

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
  // What is static is static because all that it is made of is.
  for (size_t i = 0; i < hints.size(); ++i) {
    if (hints[i].target != Hint::Target::Static) continue;
    const int producer = substitution.tensors[static_cast<size_t>(hints[i].slot)].producer;
    if (producer < 0) continue;
    for (const int slot : substitution.pattern[static_cast<size_t>(producer)].ins) {
      if (slot != Line::kOmitted) hints.push_back({Hint::Target::Static, slot, nullptr, nullptr, false});
    }
  }
  return hints;
}

}  // namespace rlopt
