// Resolves the names of a substitution and rejects malformed ones.
#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "library/substitution_syntax.h"

namespace rlopt::syntax {

namespace {

using rlopt::Line;
using RawLine = syntax::Line;
using Key = std::pair<std::string, bool>;  // name, starred

std::string shown(const Tensor& tensor) { return tensor.name + (tensor.starred ? "*" : ""); }

/// Throws unless the lines of the pattern share tensors.
void check_connected(const rlopt::Substitution& s) {
  std::vector<size_t> group(s.pattern.size());
  std::iota(group.begin(), group.end(), size_t{0});
  std::map<int, size_t> first;
  for (size_t i = 0; i < s.pattern.size(); ++i) {
    const Line& line = s.pattern[i];
    std::vector<int> slots = line.ins;
    slots.insert(slots.end(), line.outs.begin(), line.outs.end());
    for (const int slot : slots) {
      if (slot == Line::kOmitted) continue;
      const auto [it, is_new] = first.emplace(slot, i);
      if (is_new) continue;
      const size_t from = group[i], to = group[it->second];
      std::replace(group.begin(), group.end(), from, to);
    }
  }
  for (size_t i = 1; i < group.size(); ++i) {
    if (group[i] != group[0]) {
      throw SubstitutionError(s.name, s.pattern[i].line, "the pattern falls into parts that share no tensor");
    }
  }
}

/// Throws unless something holds the members of a family together.
void check_family(const rlopt::Substitution& s, int first_line) {
  bool has_member_line = false, has_order = false, has_shared = false;
  for (const Line& line : s.pattern) {
    has_member_line |= line.kind == Line::Kind::PerMember;
    has_order |= line.kind == Line::Kind::ReadsFamily || line.kind == Line::Kind::DefinesFamily;
    if (line.kind != Line::Kind::PerMember) continue;
    for (const int slot : line.ins) {
      if (slot == Line::kOmitted) continue;
      const TensorVariable& tensor = s.tensors[at(slot)];
      has_shared |= !tensor.starred && !tensor.literal;
    }
  }
  if (has_member_line && !has_order && !has_shared) {
    throw SubstitutionError(
        s.name, first_line,
        "nothing holds the family together: its lines share no tensor and no operator reads it whole");
  }
}

class Checker {
 public:
  explicit Checker(const Substitution& raw) : raw_(raw) {}

  rlopt::Substitution run() {
    result_.name = raw_.name;
    result_.doc = raw_.doc;
    result_.family = raw_.family;
    result_.exact = raw_.exact;
    result_.line = raw_.line;
    result_.proof = raw_.proof;
    if (raw_.pattern.empty()) fail(raw_.line, "the pattern is empty");
    if (raw_.replacement.empty()) fail(raw_.line, "the replacement is empty");
    for (const RawLine& raw : raw_.pattern) declare_attributes(raw);
    for (const RawLine& raw : raw_.pattern) add_pattern_line(raw);
    for (const TensorVariable& tensor : result_.tensors) result_.has_family |= tensor.starred;
    check_connected(result_);
    check_family(result_, raw_.line);
    for (const ExprPtr& raw : raw_.conditions) {
      result_.conditions.push_back(
          resolve_expression(raw, lookup(), raw_.name, ExprType::Bool, "a condition"));
    }
    for (const RawLine& raw : raw_.replacement) {
      raw.op.empty() ? add_alias(raw) : add_replacement_line(raw);
    }
    finish_outputs();
    result_.text = print_substitution(result_);
    return std::move(result_);
  }

 private:
  [[noreturn]] void fail(int line, const std::string& reason) const {
    throw SubstitutionError(raw_.name, line, reason);
  }

  // ---- names

  Lookup lookup() const {
    return [this](const std::string& name, bool starred) {
      const Key key{name, starred};
      const auto made = new_.find(key);
      if (made != new_.end()) return Symbol{true, made->second, ExprType::Tensor};
      const auto tensor = old_.find(key);
      if (tensor != old_.end()) return Symbol{true, tensor->second, ExprType::Tensor};
      const auto attribute = attributes_.find(key);
      if (attribute == attributes_.end()) return Symbol{};
      const auto kind = result_.attributes[at(attribute->second)].kind;
      return Symbol{false, attribute->second, type_of_attribute(kind)};
    };
  }

  int add_tensor(const Tensor& raw, bool is_new, int producer) {
    result_.tensors.push_back({raw.name, raw.starred, is_new, producer, raw.literal});
    return static_cast<int>(result_.tensors.size()) - 1;
  }

  /// `attr=name` in a pattern: the name becomes a variable of the attribute's kind.
  void declare_attributes(const RawLine& raw) {
    if (raw.op.empty())
      fail(raw.line, "a pattern has operators only, not '" + shown(raw.outs[0]) + " = ...'");
    const OpInfo& info = known_op(raw);
    for (const auto& [name, expr] : raw.attrs) {
      const AttrSpec& spec = known_attribute(info, name, raw.line);
      if (expr->kind != Expr::Kind::Variable) continue;
      const Key key{expr->text, expr->starred};
      const auto it = attributes_.find(key);
      if (it == attributes_.end()) {
        attributes_[key] = static_cast<int>(result_.attributes.size());
        result_.attributes.push_back({expr->text, expr->starred, spec.kind});
      } else if (result_.attributes[at(it->second)].kind != spec.kind) {
        fail(raw.line, "'" + expr->text + "' stands for attributes of two kinds");
      }
    }
  }

  const OpInfo& known_op(const RawLine& raw) const {
    const Op op = find_op(raw.op);
    if (op == Op::Opaque) fail(raw.line, "unknown operator '" + raw.op + "'");
    if (op == Op::Input || op == Op::Weight)
      fail(raw.line, raw.op + " cannot be matched or made; name a tensor");
    return op_info(op);
  }

  const AttrSpec& known_attribute(const OpInfo& info, const std::string& name, int line) const {
    const AttrSpec* spec = info.find_attr(name);
    if (spec != nullptr) return *spec;
    std::string known;
    for (const AttrSpec& each : info.attrs) known += (known.empty() ? "" : ", ") + each.name;
    fail(line, info.name + " has no attribute '" + name + "'; it has " + (known.empty() ? "none" : known));
  }

  // ---- lines

  Line::Kind line_kind(const RawLine& raw, const OpInfo& info) const {
    const auto starred = [](const Tensor& tensor) { return tensor.starred; };
    const auto outs = std::count_if(raw.outs.begin(), raw.outs.end(), starred);
    const auto ins = std::count_if(raw.ins.begin(), raw.ins.end(), starred);
    if (outs > 0 && ins == 0 && info.num_outputs < 0) {
      if (raw.outs.size() > 1) fail(raw.line, "a family of outputs stands alone: y* = " + info.name + "(x)");
      return Line::Kind::DefinesFamily;
    }
    if (outs > 0) {
      if (outs != static_cast<long>(raw.outs.size())) {
        fail(raw.line, "one output is starred and another is not: is this one node or one for each member?");
      }
      return Line::Kind::PerMember;
    }
    if (ins == 0) return Line::Kind::Plain;
    if (info.max_inputs >= 0) {
      fail(raw.line, info.name + " does not take a family; star the output for one node per member");
    }
    if (ins > 1) fail(raw.line, "a line can read one family only");
    return Line::Kind::ReadsFamily;
  }

  void check_arity(const RawLine& raw, const OpInfo& info, Line::Kind kind) const {
    size_t given = raw.ins.size();
    while (given > 0 && raw.ins[given - 1].name == "_" && !raw.ins[given - 1].literal) --given;
    const auto count = static_cast<int>(given);
    const bool too_few = count < info.min_inputs && kind != Line::Kind::ReadsFamily;
    if (too_few || (info.max_inputs >= 0 && static_cast<int>(raw.ins.size()) > info.max_inputs)) {
      const std::string most = info.max_inputs < 0 ? " or more" : "..." + std::to_string(info.max_inputs);
      fail(raw.line, info.name + " takes " + std::to_string(info.min_inputs) +
                         (info.min_inputs == info.max_inputs ? "" : most) + " inputs, got " +
                         std::to_string(raw.ins.size()));
    }
    for (size_t i = 0; i < raw.ins.size(); ++i) {
      if (raw.ins[i].name == "_" && (static_cast<int>(i) < info.min_inputs || info.max_inputs < 0)) {
        fail(raw.line, "input " + std::to_string(i + 1) + " of " + info.name + " cannot be omitted");
      }
    }
    if (info.num_outputs >= 0 && static_cast<int>(raw.outs.size()) != info.num_outputs) {
      fail(raw.line, info.name + " has " + std::to_string(info.num_outputs) + " outputs, got " +
                         std::to_string(raw.outs.size()));
    }
  }

  void add_pattern_line(const RawLine& raw) {
    const OpInfo& info = known_op(raw);
    Line line{line_kind(raw, info), info.op, {}, {}, {}, -1, raw.line};
    check_arity(raw, info, line.kind);
    const auto index = static_cast<int>(result_.pattern.size());
    for (const Tensor& in : raw.ins) line.ins.push_back(pattern_input(in, raw.line));
    while (!line.ins.empty() && line.ins.back() == Line::kOmitted) line.ins.pop_back();
    for (const Tensor& out : raw.outs) {
      if (out.name == "_") {
        line.outs.push_back(Line::kOmitted);
        continue;
      }
      const Key key{out.name, out.starred};
      if (attributes_.contains(key)) fail(raw.line, "'" + shown(out) + "' is both a tensor and an attribute");
      if (old_.contains(key)) {
        const bool is_defined = result_.tensors[at(old_.at(key))].producer >= 0;
        fail(raw.line,
             "'" + shown(out) + (is_defined ? "' is defined twice" : "' is read before it is defined"));
      }
      line.outs.push_back(old_[key] = add_tensor(out, false, index));
    }
    for (const auto& [name, expr] : raw.attrs) add_attribute(line, name, expr, "pattern");
    if (!raw.rest.empty()) {
      bind_rest(line, raw);
    } else {
      require_all_given(line, "name it or end with @rest");
    }
    result_.pattern.push_back(std::move(line));
  }

  int pattern_input(const Tensor& in, int line) {
    if (in.literal) return add_tensor(in, false, -1);
    if (in.name == "_") return Line::kOmitted;
    const Key key{in.name, in.starred};
    if (attributes_.contains(key)) fail(line, "'" + shown(in) + "' is both a tensor and an attribute");
    const auto it = old_.find(key);
    return it != old_.end() ? it->second : old_[key] = add_tensor(in, false, -1);
  }

  void add_attribute(Line& line, const std::string& name, const ExprPtr& raw, const std::string& side) {
    const OpInfo& info = op_info(line.op);
    const AttrSpec& spec = known_attribute(info, name, raw->line);
    const ExprPtr value = resolve_expression(raw, lookup(), raw_.name, type_of_attribute(spec.kind),
                                             "attribute '" + name + "' of " + info.name);
    if (value->starred && line.kind != Line::Kind::PerMember) {
      fail(raw->line, "attribute '" + name + "' has a value for each member, but this line of the " + side +
                          " stands for one node");
    }
    line.attrs.push_back({static_cast<int>(&spec - info.attrs.data()), value});
  }

  static bool names(const Line& line, int attribute) {
    return std::any_of(line.attrs.begin(), line.attrs.end(),
                       [&](const LineAttribute& each) { return each.index == attribute; });
  }

  void require_all_given(const Line& line, const std::string& todo) const {
    const OpInfo& info = op_info(line.op);
    for (size_t i = 0; i < info.attrs.size(); ++i) {
      if (info.attrs[i].required && !names(line, static_cast<int>(i))) {
        fail(line.line, info.name + ": attribute '" + info.attrs[i].name + "' has no default; " + todo);
      }
    }
  }

  void bind_rest(Line& line, const RawLine& raw) {
    RestVariable rest{raw.rest, line.op, {}};
    for (size_t i = 0; i < op_info(line.op).attrs.size(); ++i) {
      if (!names(line, static_cast<int>(i))) rest.attributes.push_back(static_cast<int>(i));
    }
    for (size_t i = 0; i < result_.rests.size(); ++i) {
      const RestVariable& other = result_.rests[i];
      if (other.name != rest.name) continue;
      if (other.op != rest.op || other.attributes != rest.attributes) {
        fail(raw.line, "@" + rest.name + " stands for different sets of attributes");
      }
      line.rest = static_cast<int>(i);
      return;
    }
    line.rest = static_cast<int>(result_.rests.size());
    result_.rests.push_back(std::move(rest));
  }

  // ---- replacement

  int replacement_input(const Tensor& in, int line) {
    if (in.literal) return add_tensor(in, true, -1);
    if (in.name == "_") return Line::kOmitted;
    const Key key{in.name, in.starred};
    if (const auto it = new_.find(key); it != new_.end()) return it->second;
    const auto it = old_.find(key);
    if (it == old_.end()) fail(line, "'" + shown(in) + "' is not defined");
    // A name that a later line defines would refer to two tensors in one replacement.
    for (const RawLine& raw : raw_.replacement) {
      for (const Tensor& out : raw.outs) {
        if (Key{out.name, out.starred} == key) fail(line, "'" + shown(in) + "' is read before it is defined");
      }
    }
    read_.insert(it->second);
    return it->second;
  }

  void define(const Tensor& out, int slot, int line) {
    const Key key{out.name, out.starred};
    if (new_.contains(key)) fail(line, "'" + shown(out) + "' is defined twice in the replacement");
    if (attributes_.contains(key)) fail(line, "'" + shown(out) + "' is both a tensor and an attribute");
    const auto it = old_.find(key);
    if (it != old_.end()) {
      if (result_.tensors[at(it->second)].producer < 0) {
        fail(line, "'" + shown(out) + "' is an input of the pattern and cannot be defined");
      }
      result_.outputs.push_back({it->second, slot});
    }
    new_[key] = slot;
  }

  void add_alias(const RawLine& raw) {
    if (raw.outs.size() != 1 || raw.outs[0].starred != raw.ins[0].starred) {
      fail(raw.line, "'y = x' names one tensor, or one family, on each side");
    }
    const int slot = replacement_input(raw.ins[0], raw.line);
    if (slot == Line::kOmitted || !old_.contains({raw.outs[0].name, raw.outs[0].starred})) {
      fail(raw.line, "'" + shown(raw.outs[0]) + "' is no output of the pattern");
    }
    read_.insert(slot);
    define(raw.outs[0], slot, raw.line);
  }

  void add_replacement_line(const RawLine& raw) {
    const OpInfo& info = known_op(raw);
    Line line{line_kind(raw, info), info.op, {}, {}, {}, -1, raw.line};
    const bool is_constant = info.op == Op::Constant;
    if (is_constant) {
      if (raw.ins.size() != 1) fail(raw.line, "Constant(x; value=[..]) takes its dtype from one tensor");
    } else {
      check_arity(raw, info, line.kind);
    }
    if (line.kind != Line::Kind::Plain && !result_.has_family) fail(raw.line, "the pattern has no family");
    for (const Tensor& in : raw.ins) line.ins.push_back(replacement_input(in, raw.line));
    for (const int slot : line.ins) {
      if (slot != Line::kOmitted) read_.insert(slot);
    }
    for (const auto& [name, expr] : raw.attrs) add_attribute(line, name, expr, "replacement");
    if (raw.rest.empty()) {
      require_all_given(line, "give it a value");
    } else {
      use_rest(line, raw.rest);
    }
    for (const Tensor& out : raw.outs) {
      if (out.name == "_") {
        line.outs.push_back(Line::kOmitted);
        continue;
      }
      const int slot = add_tensor(out, true, static_cast<int>(result_.replacement.size()));
      define(out, slot, raw.line);
      line.outs.push_back(slot);
    }
    result_.replacement.push_back(std::move(line));
  }

  void use_rest(Line& line, const std::string& name) const {
    const auto it = std::find_if(result_.rests.begin(), result_.rests.end(),
                                 [&](const RestVariable& rest) { return rest.name == name; });
    if (it == result_.rests.end()) fail(line.line, "@" + name + " is not bound by the pattern");
    line.rest = static_cast<int>(it - result_.rests.begin());
    const OpInfo &from = op_info(it->op), &to = op_info(line.op);
    std::set<std::string> given;
    for (const int i : it->attributes) given.insert(from.attrs[at(i)].name);
    for (const std::string& attr : given) {
      if (to.find_attr(attr) == nullptr) {
        fail(line.line, "@" + name + " has '" + attr + "', which " + to.name + " has not");
      }
    }
    for (size_t i = 0; i < to.attrs.size(); ++i) {
      if (to.attrs[i].required && !given.contains(to.attrs[i].name) && !names(line, static_cast<int>(i))) {
        fail(line.line, to.name + ": attribute '" + to.attrs[i].name + "' has no default; give it a value");
      }
    }
  }

  // ---- whole substitution

  void finish_outputs() const {
    if (result_.outputs.empty()) fail(raw_.line, "the replacement defines no output of the pattern");
    for (const auto& [key, slot] : new_) {
      const TensorVariable& tensor = result_.tensors[at(slot)];
      const bool is_output =
          std::any_of(result_.outputs.begin(), result_.outputs.end(),
                      [&, slot = slot](const Output& out) { return out.new_slot == slot; });
      // `y = x` renames a tensor of the pattern, whose producer is a line there.
      const bool has_siblings =
          tensor.is_new && tensor.producer >= 0 && result_.replacement[at(tensor.producer)].outs.size() > 1;
      if (!is_output && !read_.contains(slot) && !has_siblings) {
        fail(raw_.line,
             "'" + tensor.name + (tensor.starred ? "*" : "") + "' of the replacement is never used");
      }
    }
  }

  const Substitution& raw_;
  rlopt::Substitution result_;
  std::map<Key, int> old_;  // tensors of the pattern
  std::map<Key, int> new_;  // tensors of the replacement defined so far
  std::map<Key, int> attributes_;
  std::set<int> read_;
};

}  // namespace

rlopt::Substitution resolve(const Substitution& raw) { return Checker(raw).run(); }

}  // namespace rlopt::syntax
