// Symmetries of substitutions.
#include <algorithm>

#include "library/pattern.h"

namespace rlopt {

namespace {

constexpr int kMaxSteps = 5000;  // search limit; a pattern with more freedom keeps its duplicates

/// The image of each variable; -1: undecided.
struct Renaming {
  std::vector<int> lines;
  std::vector<int> tensors;
  std::vector<int> attributes;
  std::vector<int> rests;
};

bool assign(std::vector<int>& map, int from, int to) {
  if (map[at(from)] >= 0) return map[at(from)] == to;
  if (std::find(map.begin(), map.end(), to) != map.end()) return false;
  map[at(from)] = to;
  return true;
}

bool is_symmetric(const Expr& expr) {
  if (expr.kind == Expr::Kind::Call) {
    return expr.text == "same_shape" || expr.text == "max" || expr.text == "min" || expr.text == "close" ||
           expr.text == "zip_add" || expr.text == "zip_mul";
  }
  if (expr.kind != Expr::Kind::Binary) return false;
  return expr.op <= BinaryOp::NotEqual || expr.op == BinaryOp::Add || expr.op == BinaryOp::Mul;
}

class Finder {
 public:
  explicit Finder(const Substitution& substitution) : s_(substitution) {}

  std::vector<Symmetry> run() {
    if (s_.has_family) return {};
    Renaming identity = empty();
    for (auto* map : {&identity.lines, &identity.tensors, &identity.attributes, &identity.rests}) {
      for (size_t i = 0; i < map->size(); ++i) (*map)[i] = static_cast<int>(i);
    }
    conditions_ = conditions(identity);
    for (const Output& output : s_.outputs) meanings_.push_back(meaning(output.new_slot, identity));
    identity_ = identity;
    search(0, empty());
    return std::move(found_);
  }

 private:
  Renaming empty() const {
    return {std::vector<int>(s_.pattern.size(), -1), std::vector<int>(s_.tensors.size(), -1),
            std::vector<int>(s_.attributes.size(), -1), std::vector<int>(s_.rests.size(), -1)};
  }

  void search(size_t line, const Renaming& renaming) {
    if (++steps_ > kMaxSteps) return;
    if (line == s_.pattern.size()) {
      accept(renaming);
      return;
    }
    const Line& from = s_.pattern[line];
    for (size_t i = 0; i < s_.pattern.size(); ++i) {
      const Line& to = s_.pattern[i];
      if (to.op != from.op || to.ins.size() != from.ins.size() || to.outs.size() != from.outs.size())
        continue;
      const bool swaps = is_commutative(from.op) && from.ins.size() == 2;
      for (int order = 0; order < (swaps ? 2 : 1); ++order) {
        Renaming next = renaming;
        if (assign(next.lines, static_cast<int>(line), static_cast<int>(i)) &&
            map_line(from, to, order == 1, next)) {
          search(line + 1, next);
        }
      }
    }
  }

  bool map_tensor(int from, int to, Renaming& renaming) const {
    if (from == Line::kOmitted || to == Line::kOmitted) return from == to;
    if (s_.tensors[at(from)].literal != s_.tensors[at(to)].literal) return false;
    return assign(renaming.tensors, from, to);
  }

  bool map_line(const Line& from, const Line& to, bool is_swapped, Renaming& renaming) const {
    for (size_t i = 0; i < from.outs.size(); ++i) {
      if (!map_tensor(from.outs[i], to.outs[i], renaming)) return false;
    }
    for (size_t i = 0; i < from.ins.size(); ++i) {
      if (!map_tensor(from.ins[i], to.ins[is_swapped ? 1 - i : i], renaming)) return false;
    }
    if ((from.rest < 0) != (to.rest < 0) || from.attrs.size() != to.attrs.size()) return false;
    if (from.rest >= 0 && !assign(renaming.rests, from.rest, to.rest)) return false;
    for (size_t i = 0; i < from.attrs.size(); ++i) {
      const Expr &a = *from.attrs[i].value, &b = *to.attrs[i].value;
      if (from.attrs[i].index != to.attrs[i].index || a.kind != b.kind) return false;
      if (a.kind == Expr::Kind::Variable && !assign(renaming.attributes, a.slot, b.slot)) return false;
    }
    return true;
  }

  void accept(const Renaming& renaming) {
    const bool is_identity =
        renaming.lines == identity_.lines && old_tensors(renaming) == old_tensors(identity_);
    if (is_identity || conditions(renaming) != conditions_) return;
    for (size_t i = 0; i < s_.pattern.size(); ++i) {
      const auto &mine = s_.pattern[i].attrs, &theirs = s_.pattern[at(renaming.lines[i])].attrs;
      for (size_t k = 0; k < mine.size(); ++k) {
        if (print(*mine[k].value, renaming) != print(*theirs[k].value, identity_)) return;
      }
    }
    for (const Output& output : s_.outputs) {
      const int image = renaming.tensors[at(output.old_slot)];
      const auto it = std::find_if(s_.outputs.begin(), s_.outputs.end(),
                                   [&](const Output& other) { return other.old_slot == image; });
      if (it == s_.outputs.end()) return;
      if (meaning(output.new_slot, renaming) != meanings_[at(it - s_.outputs.begin())]) return;
    }
    found_.push_back({renaming.lines, renaming.tensors});
  }

  std::vector<int> old_tensors(const Renaming& renaming) const {
    std::vector<int> tensors;
    for (size_t i = 0; i < s_.tensors.size(); ++i) {
      if (!s_.tensors[i].is_new) tensors.push_back(renaming.tensors[i]);
    }
    return tensors;
  }

  // ---- meanings, as text in which renamed variables have their new numbers

  std::string join(std::vector<std::string> parts, bool sorts) const {
    if (sorts) std::sort(parts.begin(), parts.end());
    std::string text = "(";
    for (const std::string& part : parts) text += part + ",";
    return text + ")";
  }

  std::string print(const Expr& expr, const Renaming& renaming) const {
    if (expr.kind == Expr::Kind::Variable) {
      if (!expr.is_tensor) return "@" + std::to_string(renaming.attributes[at(expr.slot)]);
      return s_.tensors[at(expr.slot)].is_new ? meaning(expr.slot, renaming)
                                              : "$" + std::to_string(renaming.tensors[at(expr.slot)]);
    }
    if (expr.args.empty()) return print_expression(expr);
    std::vector<std::string> parts;
    for (const ExprPtr& arg : expr.args) parts.push_back(print(*arg, renaming));
    return std::to_string(static_cast<int>(expr.kind)) + "." + std::to_string(static_cast<int>(expr.op)) +
           expr.text + join(std::move(parts), is_symmetric(expr));
  }

  std::vector<std::string> conditions(const Renaming& renaming) const {
    std::vector<std::string> all;
    for (const ExprPtr& condition : s_.conditions) all.push_back(print(*condition, renaming));
    std::sort(all.begin(), all.end());
    return all;
  }

  /// The replacement's expression for a tensor.
  std::string meaning(int slot, const Renaming& renaming) const {
    if (slot == Line::kOmitted) return "_";
    const TensorVariable& tensor = s_.tensors[at(slot)];
    if (tensor.literal) return attr_str(*tensor.literal);
    if (!tensor.is_new) return "$" + std::to_string(renaming.tensors[at(slot)]);
    const Line& line = s_.replacement[at(tensor.producer)];
    std::vector<std::string> ins, attrs;
    for (const int in : line.ins) ins.push_back(meaning(in, renaming));
    for (const LineAttribute& attr : line.attrs) {
      attrs.push_back(std::to_string(attr.index) + "=" + print(*attr.value, renaming));
    }
    if (line.rest >= 0) attrs.push_back("@" + std::to_string(renaming.rests[at(line.rest)]));
    const auto out = std::find(line.outs.begin(), line.outs.end(), slot) - line.outs.begin();
    return op_info(line.op).name + std::to_string(out) + join(std::move(ins), is_commutative(line.op)) +
           join(std::move(attrs), true);
  }

  const Substitution& s_;
  Renaming identity_;
  std::vector<std::string> conditions_;
  std::vector<std::string> meanings_;  // of each output's replacement
  std::vector<Symmetry> found_;
  int steps_ = 0;
};

}  // namespace

std::vector<Symmetry> find_symmetries(const Substitution& substitution) { return Finder(substitution).run(); }

}  // namespace rlopt
