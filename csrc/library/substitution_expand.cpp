// Expands two shorthands before anything else sees them: `let name = expression` is inlined, and a
// substitution with optional inputs (`b?`) becomes one substitution with each and one without each.
#include <map>
#include <set>

#include "library/substitution_syntax.h"

namespace rlopt::syntax {

namespace {

using Definitions = std::map<std::string, ExprPtr>;

constexpr size_t kMaxOptional = 3;  // 8 substitutions from one text

ExprPtr inlined(const ExprPtr& expr, const Definitions& lets) {
  if (expr->kind == Expr::Kind::Variable && !expr->starred) {
    const auto it = lets.find(expr->text);
    if (it != lets.end()) return it->second;
  }
  if (expr->args.empty()) return expr;
  auto copy = std::make_shared<Expr>(*expr);
  for (auto& arg : copy->args) arg = inlined(arg, lets);
  return copy;
}

/// Stops counting at the limit.
size_t size_of(const Expr& expr) {
  size_t size = 1;
  for (const auto& arg : expr.args) {
    if (size <= kMaxExpression) size += size_of(*arg);
  }
  return size;
}

void inline_lets(Substitution& raw) {
  Definitions lets;
  // With nested lets, each may double the size of the previous one.
  const auto put_in = [&](const ExprPtr& expr) {
    ExprPtr whole = inlined(expr, lets);
    if (size_of(*whole) > kMaxExpression) throw SubstitutionError(raw.name, expr->line, kTooLarge);
    return whole;
  };
  for (const auto& [name, expr] : raw.lets) {
    if (!lets.emplace(name, put_in(expr)).second) {
      throw SubstitutionError(raw.name, expr->line, "'" + name + "' is defined by two lets");
    }
  }
  raw.lets.clear();
  for (auto& condition : raw.conditions) condition = put_in(condition);
  for (auto* side : {&raw.pattern, &raw.replacement}) {
    for (Line& line : *side) {
      for (auto& [name, expr] : line.attrs) {
        // In a pattern a lone name binds the attribute; a let with that name would hide the binding.
        if (side == &raw.pattern && expr->kind == Expr::Kind::Variable && lets.contains(expr->text)) {
          throw SubstitutionError(raw.name, line.line,
                                  "'" + expr->text + "' is a let and binds an attribute");
        }
        expr = put_in(expr);
      }
    }
  }
}

bool mentions(const ExprPtr& expr, const std::string& name) {
  if (expr->kind == Expr::Kind::Variable && !expr->starred && expr->text == name) return true;
  for (const auto& arg : expr->args) {
    if (mentions(arg, name)) return true;
  }
  return false;
}

/// Names marked `?` anywhere, in pattern order.
std::vector<std::string> optional_names(const Substitution& raw) {
  std::vector<std::string> names;
  std::set<std::string> in_pattern;
  for (const Line& line : raw.pattern) {
    for (const Tensor& in : line.ins) {
      if (in.is_optional && in_pattern.insert(in.name).second) names.push_back(in.name);
    }
  }
  for (const Line& line : raw.replacement) {
    for (const Tensor& in : line.ins) {
      if (in.is_optional && !in_pattern.contains(in.name)) {
        throw SubstitutionError(raw.name, line.line, "'" + in.name + "?' is not optional in the pattern");
      }
    }
  }
  if (names.size() > kMaxOptional) {
    throw SubstitutionError(raw.name, raw.line,
                            "more than " + std::to_string(kMaxOptional) + " optional inputs");
  }
  return names;
}

/// The substitution with or without the optional input.
Substitution with_choice(Substitution raw, const std::string& name, bool is_present) {
  for (auto* side : {&raw.pattern, &raw.replacement}) {
    for (Line& line : *side) {
      for (Tensor& in : line.ins) {
        if (!in.is_optional || in.name != name) continue;
        in.is_optional = false;
        if (!is_present) in.name = "_";
      }
    }
  }
  if (!is_present) {
    std::string suffix = "_no_";
    suffix.append(name);
    raw.name += suffix;
    // Conditions on an absent input are dropped.
    std::erase_if(raw.conditions, [&name](const ExprPtr& condition) { return mentions(condition, name); });
  }
  return raw;
}

}  // namespace

std::vector<Substitution> expand(const Substitution& raw) {
  std::vector<Substitution> all{raw};
  inline_lets(all[0]);
  for (const std::string& name : optional_names(raw)) {
    std::vector<Substitution> next;
    for (const Substitution& each : all) {
      next.push_back(with_choice(each, name, true));
      next.push_back(with_choice(each, name, false));
    }
    all = std::move(next);
  }
  return all;
}

}  // namespace rlopt::syntax
