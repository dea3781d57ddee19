// Printing and hashing of substitutions.
#include "library/substitution.h"

#include <algorithm>

namespace rlopt {

namespace {

constexpr int kUnary = 6;

/// Adds parentheses if `expr` binds less tightly than its context.
std::string print(const Expr& expr, int place) {
  const auto joined = [&](const std::string& open, const std::string& close) {
    std::string text = open;
    for (size_t i = 0; i < expr.args.size(); ++i) text += (i > 0 ? ", " : "") + print(*expr.args[i], 0);
    return text + close;
  };
  switch (expr.kind) {
    case Expr::Kind::Int:
      return std::to_string(expr.int_value);
    case Expr::Kind::Float:
      return attr_str(expr.float_value);
    case Expr::Kind::String:
      return attr_str(expr.text);
    case Expr::Kind::Variable:
      return expr.text + (expr.starred ? "*" : "");
    case Expr::Kind::List:
      return joined("[", "]");
    case Expr::Kind::Call:
      return joined(expr.text + "(", ")");
    case Expr::Kind::Gather:
      return print(*expr.args[0], place);
    case Expr::Kind::Not:
      return "!" + print(*expr.args[0], kUnary);
    case Expr::Kind::Negate:
      return "-" + print(*expr.args[0], kUnary);
    case Expr::Kind::Index: {
      // `s*[0]` would parse as a product.
      const std::string list = print(*expr.args[0], kUnary);
      return (list.ends_with('*') ? "(" + list + ")" : list) + "[" + print(*expr.args[1], 0) + "]";
    }
    case Expr::Kind::Binary:
      break;
  }
  const auto& [symbol, op, mine] = kOperators[at(expr.op)];
  const int left = mine == 3 ? mine + 1 : mine;  // comparisons do not chain
  const std::string text = print(*expr.args[0], left) + " " + symbol + " " + print(*expr.args[1], mine + 1);
  return mine < place ? "(" + text + ")" : text;
}

std::string print_line(const Substitution& s, const Line& line) {
  const auto name = [&](int slot) {
    if (slot == Line::kOmitted) return std::string("_");
    const TensorVariable& tensor = s.tensors[at(slot)];
    return tensor.literal ? attr_str(*tensor.literal) : tensor.name + (tensor.starred ? "*" : "");
  };
  std::string text = "  ";
  for (size_t i = 0; i < line.outs.size(); ++i) text += (i > 0 ? ", " : "") + name(line.outs[i]);
  text += " = " + op_info(line.op).name + "(";
  for (size_t i = 0; i < line.ins.size(); ++i) text += (i > 0 ? ", " : "") + name(line.ins[i]);
  std::string separator = "; ";
  for (const LineAttribute& attribute : line.attrs) {
    text += separator + op_info(line.op).attrs[at(attribute.index)].name + "=" +
            print_expression(*attribute.value);
    separator = ", ";
  }
  if (line.rest >= 0) text += separator + "@" + s.rests[at(line.rest)].name;
  return text + ")\n";
}

}  // namespace

std::string print_expression(const Expr& expr) { return print(expr, 0); }

std::string print_substitution(const Substitution& s) {
  std::string text = "substitution " + s.name + (s.exact ? " exact" : "") + "\n";
  for (const Line& line : s.pattern) text += print_line(s, line);
  text += "=>\n";
  for (const Line& line : s.replacement) text += print_line(s, line);
  for (const Output& output : s.outputs) {
    const TensorVariable &old_tensor = s.tensors[at(output.old_slot)],
                         &new_tensor = s.tensors[at(output.new_slot)];
    if (new_tensor.name == old_tensor.name && new_tensor.is_new) continue;
    const std::string star = old_tensor.starred ? "*" : "";
    text += "  " + old_tensor.name + star + " = " + new_tensor.name + star + "\n";
  }
  for (size_t i = 0; i < s.conditions.size(); ++i) {
    text += (i == 0 ? "where\n  " : "  ") + print_expression(*s.conditions[i]) + "\n";
  }
  if (!s.proof.empty()) text += "proof " + s.proof + "\n";
  return text;
}

uint64_t library_hash(const std::vector<Substitution>& library) {
  std::vector<uint64_t> hashes;
  for (const Substitution& each : library) {
    Substitution bare = each;
    bare.proof.clear();
    hashes.push_back(hash_string(print_substitution(bare)));
  }
  std::sort(hashes.begin(), hashes.end());
  uint64_t hash = hashes.size();
  for (const uint64_t each : hashes) hash = hash_mix(hash, each);
  return hash;
}

}  // namespace rlopt
