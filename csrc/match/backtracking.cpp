#include "match/backtracking.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "core/unique.h"

namespace rlopt {

namespace {

constexpr int64_t kMaxWork = 50000;  // candidates from one start: bounds the cost of a pathological graph

bool attributes_close(const AttrValue& a, const AttrValue& b) {
  const auto *x = std::get_if<double>(&a), *y = std::get_if<double>(&b);
  return x != nullptr && y != nullptr ? nearly_equal(*x, *y) : a == b;
}

size_t num_inputs(const Node& node) {
  size_t count = node.inputs.size();
  while (count > 0 && !node.inputs[count - 1].present()) --count;
  return count;
}

}  // namespace

Matcher::Matcher(const Graph& graph, const GraphIndex& index, const Library& library, int substitution)
    : graph_(graph),
      index_(index),
      substitution_(library.substitutions()[at(substitution)]),
      pattern_(library.pattern(substitution)),
      number_(substitution) {
  binding_.tensors.assign(pattern_.num_tensors, Binding::kUnbound);
  binding_.attributes.assign(substitution_.attributes.size(), nullptr);
  binding_.rests.assign(substitution_.rests.size(), nullptr);
  line_nodes_.assign(pattern_.lines.size(), -1);
  if (pattern_.mode == CompiledPattern::Mode::Single) return;
  binding_.family_tensors.resize(pattern_.num_tensors);
  binding_.family_attributes.resize(substitution_.attributes.size());
  member_nodes_.resize(pattern_.lines.size());
  is_whole_.assign(pattern_.num_tensors, false);
}

const PatternPlan* Matcher::best_plan() const {
  const auto count_of = [this](const PatternLine& line) {
    return index_.count(line.op) + (line.is_sum ? index_.count(Op::Add) : 0);
  };
  for (const PatternLine& line : pattern_.lines) {
    if (count_of(line) == 0) return nullptr;
  }
  // An ordered family takes the first way in which it matches: always use the same plan for determinism.
  if (pattern_.mode == CompiledPattern::Mode::OrderedFamily) return &pattern_.plans.front();
  const auto count = [&](const PatternPlan& plan) { return count_of(pattern_.lines[at(plan.start)]); };
  return &*std::min_element(pattern_.plans.begin(), pattern_.plans.end(),
                            [&](const PatternPlan& a, const PatternPlan& b) { return count(a) < count(b); });
}

std::vector<Match> Matcher::all() {
  const PatternPlan* plan = best_plan();
  if (plan == nullptr) return {};
  if (pattern_.mode == CompiledPattern::Mode::FreeFamily) {
    free_families(*plan);
    return take();
  }
  const PatternLine& line = pattern_.lines[at(plan->start)];
  for (const NodeId id : candidates(line)) {
    if (index_.may_be(line, id)) match_at(*plan, id);
  }
  return take();
}

std::vector<NodeId> Matcher::candidates(const PatternLine& line) const {
  std::vector<NodeId> ids(index_.begin(line.op), index_.end(line.op));
  if (line.is_sum) ids.insert(ids.end(), index_.begin(Op::Add), index_.end(Op::Add));
  return ids;
}

std::vector<Value> Matcher::operands(const PatternLine& line, NodeId id) const {
  const Node& root = graph_.node(id);
  if (root.op == line.op) {
    return {root.inputs.begin(), root.inputs.begin() + static_cast<long>(num_inputs(root))};
  }
  std::vector<Value> leaves, stack{root.inputs.rbegin(), root.inputs.rend()};
  while (!stack.empty() && leaves.size() <= at(kMaxMembers)) {
    const Value value = stack.back();
    stack.pop_back();
    const Node& node = graph_.node(value.node);
    if (node.op == Op::Add && graph_.num_uses(value) == 1 && *node.types == *root.types) {
      stack.insert(stack.end(), node.inputs.rbegin(), node.inputs.rend());
    } else {
      leaves.push_back(value);
    }
  }
  return leaves;
}

void Matcher::match_at(const PatternPlan& plan, NodeId node) {
  work_ = 0;
  const Done done = [&] {
    if (pattern_.mode == CompiledPattern::Mode::OrderedFamily) {
      match_member(plan, 0);
    } else if (run_final_checks(plan)) {
      emit();
    }
    return false;
  };
  try_node(plan.before, 0, node, done);
}

void Matcher::trace_from(const PatternPlan& plan, NodeId node) {
  work_ = 0;
  if (!plan.member.empty() && plan.before.empty()) {
    try_node(plan.member, 0, node, [] { return false; });
  } else {
    match_at(plan, node);
  }
}

bool Matcher::walk(const Steps& steps, size_t i, const Done& done) {
  if (i == steps.size()) return done();
  const PatternStep& step = steps[i];
  const PatternLine& line = pattern_.lines[at(step.line)];
  const Value current = binding_.tensors[at(step.slot)];
  const Value value = current != Binding::kUnbound ? current : binding_.family_tensors[at(step.slot)][0];
  if (step.via == PatternStep::Via::Output) {
    const bool is_output = line.kind == Line::Kind::DefinesFamily || value.index == step.position;
    if (!is_output) return fail([&] { return op_info(line.op).name + " gives it as another output"; });
    return try_node(steps, i, value.node, done);
  }
  const auto [operand, position] = rarest(line, value, step.position);
  for (const NodeId id : readers(operand, line, position)) {
    if (try_node(steps, i, id, done)) return true;
  }
  return false;
}

std::vector<NodeId> Matcher::readers(Value value, const PatternLine& line, int position) const {
  std::vector<NodeId> found;
  for (const Use& use : graph_.uses(value.node)) {
    if (use.node < 0 || (line.num_orders == 1 && use.slot != position)) continue;
    const Node& node = graph_.node(use.node);
    if (line.stands_for(node.op) && node.inputs[at(use.slot)] == value) found.push_back(use.node);
  }
  sort_unique(found);
  return found;
}

bool Matcher::is_free(NodeId id) const {
  return std::find(line_nodes_.begin(), line_nodes_.end(), id) == line_nodes_.end();
}

bool Matcher::try_node(const Steps& steps, size_t i, NodeId id, const Done& done) {
  const PatternLine& line = pattern_.lines[at(steps[i].line)];
  const Node& node = graph_.node(id);
  if (!line.stands_for(node.op)) {
    return fail([&] { return "expected " + op_info(line.op).name + ", found " + node.info().name; });
  }
  if (node.keeps_bits && !substitution_.exact)
    return fail([&] { return node.info().name + " keeps its bits, since a later operator may jump"; });
  if (++work_ > kMaxWork) return true;
  if (!is_free(id) || !fits(line, node, line.is_sum ? operands(line, id).size() : num_inputs(node)))
    return false;
  const size_t mark = trail_.size();
  bool stop = false;
  if (bind_outs(line, id) && bind_attributes(line, node)) {
    stop = try_order(steps, i, id, false, done);
    const bool has_other = line.num_orders == 2 && node.inputs[0] != node.inputs[1];
    if (!stop && has_other) stop = try_order(steps, i, id, true, done);
  }
  undo(mark);
  return stop;
}

bool Matcher::try_order(const Steps& steps, size_t i, NodeId id, bool is_swapped, const Done& done) {
  const PatternStep& step = steps[i];
  const size_t mark = trail_.size();
  trail_.push_back({Change::Kind::Line, step.line, {}, nullptr, line_nodes_[at(step.line)]});
  line_nodes_[at(step.line)] = id;
  const bool stop = bind_ins(pattern_.lines[at(step.line)], id, is_swapped) && run_checks(step.checks) &&
                    walk(steps, i + 1, done);
  undo(mark);
  return stop;
}

bool Matcher::fits(const PatternLine& line, const Node& node, size_t count) {
  const int outs = node.num_outputs();
  const bool is_reader = line.kind == Line::Kind::ReadsFamily;
  const auto in_range = [](int number) { return number >= 2 && number <= kMaxMembers; };
  const bool ins_fit = is_reader ? in_range(static_cast<int>(count) - static_cast<int>(line.ins.size()) + 1)
                                 : count == line.ins.size();
  if (!ins_fit) {
    return fail([&] { return node.info().name + " has " + std::to_string(count) + " inputs"; });
  }
  const bool outs_fit =
      line.kind == Line::Kind::DefinesFamily ? in_range(outs) : outs == static_cast<int>(line.outs.size());
  if (!outs_fit) return fail([&] { return node.info().name + " has " + std::to_string(outs) + " outputs"; });
  for (const auto& [index, value] : line.equal_attrs) {
    const AttrValue& found = node.attrs->values()[at(index)];
    if (attributes_close(found, value)) continue;
    return fail([&, index = index, value = value] {
      return node.info().name + "'s " + node.info().attrs[at(index)].name + " is " + attr_str(found) +
             ", not " + attr_str(value);
    });
  }
  return true;
}

bool Matcher::bind_outs(const PatternLine& line, NodeId id) {
  if (line.kind == Line::Kind::DefinesFamily) {
    std::vector<Value> values;
    for (int i = 0; i < graph_.node(id).num_outputs(); ++i) values.push_back({id, i});
    return bind_family(line.outs[0], std::move(values));
  }
  for (size_t i = 0; i < line.outs.size(); ++i) {
    if (line.outs[i] == Line::kOmitted) continue;
    if (!bind_tensor(line.outs[i], {id, static_cast<int32_t>(i)})) return false;
  }
  return true;
}

bool Matcher::bind_ins(const PatternLine& line, NodeId id, bool is_swapped) {
  if (line.is_sum) return bind_family(line.ins[0], operands(line, id));
  const Node& node = graph_.node(id);
  size_t next = 0;
  for (size_t i = 0; i < line.ins.size(); ++i) {
    if (static_cast<int>(i) == line.family_in) {
      const size_t count = num_inputs(node) - line.ins.size() + 1;
      const auto first = node.inputs.begin() + static_cast<long>(next);
      if (!bind_family(line.ins[i], {first, first + static_cast<long>(count)})) return false;
      next += count;
      continue;
    }
    const Value value = node.inputs[is_swapped ? 1 - next : next];
    ++next;
    if (line.ins[i] == Line::kOmitted || !value.present()) {
      if (line.ins[i] == Line::kOmitted && !value.present()) continue;
      return fail([&] { return "an optional input of " + node.info().name + " differs"; });
    }
    if (!bind_tensor(line.ins[i], value)) return false;
  }
  return true;
}

bool Matcher::bind_attributes(const PatternLine& line, const Node& node) {
  for (const auto& [index, slot] : line.bound_attrs) {
    const AttrValue* value = &node.attrs->values()[at(index)];
    const AttrValue* bound = binding_.attributes[at(slot)];
    if (bound == nullptr) {
      set_attribute(slot, value);
    } else if (!(*bound == *value)) {
      return fail([&, slot = slot] {
        return "attribute " + substitution_.attributes[at(slot)].name + " is both " + attr_str(*bound) +
               " and " + attr_str(*value);
      });
    }
  }
  if (line.rest < 0) return true;
  const Attrs* bound = binding_.rests[at(line.rest)];
  if (bound == nullptr) {
    trail_.push_back({Change::Kind::Rest, line.rest, {}, nullptr, -1});
    binding_.rests[at(line.rest)] = node.attrs.get();
    return true;
  }
  return rests_agree(line.rest, *bound, *node.attrs) ||
         fail([&] { return "attributes @" + substitution_.rests[at(line.rest)].name + " differ"; });
}

bool Matcher::rests_agree(int rest, const Attrs& a, const Attrs& b) const {
  const auto& attributes = substitution_.rests[at(rest)].attributes;
  return std::all_of(attributes.begin(), attributes.end(),
                     [&](int index) { return a.values()[at(index)] == b.values()[at(index)]; });
}

bool Matcher::bind_tensor(int slot, Value value) {
  const Value bound = binding_.tensors[at(slot)];
  const TensorVariable& tensor = substitution_.tensors[at(slot)];
  if (bound == Binding::kUnbound) {
    if (tensor.literal) {
      const auto number = scalar_constant(graph_, value);
      if (!number || !is_literal(*number, *tensor.literal, graph_.type(value).dtype)) {
        return fail([&] { return "an operand is not the constant " + attr_str(*tensor.literal); });
      }
    }
    set_tensor(slot, value);
    return true;
  }
  return bound == value || fail([&] { return tensor.name + " would be two different tensors"; });
}

bool Matcher::bind_family(int slot, std::vector<Value> values) {
  if (is_whole_[at(slot)]) {
    return binding_.family_tensors[at(slot)] == values ||
           fail([&] { return substitution_.tensors[at(slot)].name + "* would be two different families"; });
  }
  const auto count = static_cast<int>(values.size());
  if (num_members_ != 0 && num_members_ != count) {
    return fail([] { return "families of different sizes"; });
  }
  trail_.push_back({Change::Kind::NumMembers, 0, {}, nullptr, num_members_});
  trail_.push_back({Change::Kind::Family, slot, {}, nullptr, -1});
  num_members_ = count;
  binding_.family_tensors[at(slot)] = std::move(values);
  is_whole_[at(slot)] = true;
  return true;
}

void Matcher::set_tensor(int slot, Value value) {
  trail_.push_back({Change::Kind::Tensor, slot, binding_.tensors[at(slot)], nullptr, -1});
  binding_.tensors[at(slot)] = value;
}

void Matcher::set_attribute(int slot, const AttrValue* value) {
  trail_.push_back({Change::Kind::Attribute, slot, {}, binding_.attributes[at(slot)], -1});
  binding_.attributes[at(slot)] = value;
}

void Matcher::undo(size_t mark) {
  while (trail_.size() > mark) {
    const Change& change = trail_.back();
    switch (change.kind) {
      case Change::Kind::Tensor:
        binding_.tensors[at(change.slot)] = change.tensor;
        break;
      case Change::Kind::Attribute:
        binding_.attributes[at(change.slot)] = static_cast<const AttrValue*>(change.pointer);
        break;
      case Change::Kind::Rest:
        binding_.rests[at(change.slot)] = nullptr;
        break;
      case Change::Kind::Line:
        line_nodes_[at(change.slot)] = change.number;
        break;
      case Change::Kind::Family:
        is_whole_[at(change.slot)] = false;
        break;
      case Change::Kind::NumMembers:
        num_members_ = change.number;
        break;
    }
    trail_.pop_back();
  }
}

bool Matcher::check_holds(const PatternCheck& check, int member) const {
  const Bound value = evaluate(*check.expr, graph_, binding_, num_members_, member);
  if (check.line < 0) return value == Bound{true};
  const NodeId id = member < 0 ? line_nodes_[at(check.line)] : member_nodes_[at(check.line)][at(member)];
  return bounds_equal(to_bound(graph_.node(id).attrs->values()[at(check.attribute)]), value).value_or(false);
}

bool Matcher::run_checks(const std::vector<int>& checks) {
  for (const int i : checks) {
    const PatternCheck& check = pattern_.checks[at(i)];
    if (!check_holds(check, -1)) return fail([&] { return "condition does not hold: " + check.text; });
  }
  return true;
}

bool Matcher::run_final_checks(const PatternPlan& plan) {
  for (const int i : plan.final_checks) {
    const PatternCheck& check = pattern_.checks[at(i)];
    const bool is_for_each = check.expr->starred || (check.line >= 0 && pattern_.lines[at(check.line)].kind ==
                                                                            Line::Kind::PerMember);
    for (int m = is_for_each ? 0 : -1; m < (is_for_each ? num_members_ : 0); ++m) {
      if (!check_holds(check, m)) return fail([&] { return "condition does not hold: " + check.text; });
    }
  }
  return true;
}

void Matcher::emit() {
  Match match;
  match.substitution = number_;
  match.num_members = num_members_;
  for (size_t i = 0; i < line_nodes_.size(); ++i) {
    if (pattern_.lines[i].kind != Line::Kind::PerMember) {
      match.nodes.push_back(line_nodes_[i]);
    } else {
      match.nodes.insert(match.nodes.end(), member_nodes_[i].begin(),
                         member_nodes_[i].begin() + num_members_);
    }
  }
  match.binding = binding_;
  require_bounded(matches_.size() / 2);  // pairs are found in both orders
  matches_.push_back(std::move(match));
}

void Matcher::record(const std::string& failure) {
  const auto bound = std::count_if(line_nodes_.begin(), line_nodes_.end(), [](NodeId id) { return id >= 0; });
  if (static_cast<int>(bound) < progress_->num_lines) return;
  progress_->num_lines = static_cast<int>(bound);
  progress_->failure = failure;
}

}  // namespace rlopt
