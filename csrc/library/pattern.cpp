#include "library/pattern.h"

#include <algorithm>

namespace rlopt {

namespace {

bool has_gather(const Expr& expr) {
  if (expr.kind == Expr::Kind::Gather) return true;
  return std::any_of(expr.args.begin(), expr.args.end(), [](const ExprPtr& arg) { return has_gather(*arg); });
}

void collect(const Expr& expr, SlotSet& tensors, SlotSet& attributes) {
  if (expr.kind == Expr::Kind::Variable) {
    (expr.is_tensor ? tensors : attributes).set(static_cast<size_t>(expr.slot));
  }
  for (const ExprPtr& arg : expr.args) collect(*arg, tensors, attributes);
}

bool is_literal(const Expr& expr) {
  const bool is_leaf =
      expr.kind == Expr::Kind::Int || expr.kind == Expr::Kind::Float || expr.kind == Expr::Kind::String;
  return is_leaf ||
         (expr.kind == Expr::Kind::List && std::all_of(expr.args.begin(), expr.args.end(),
                                                       [](const ExprPtr& arg) { return is_literal(*arg); }));
}

class Compiler {
 public:
  explicit Compiler(const Substitution& substitution) : s_(substitution) {}

  CompiledPattern run() {
    if (s_.tensors.size() > SlotSet().size() || s_.attributes.size() > SlotSet().size()) {
      throw SubstitutionError(s_.name, s_.line, "more than " + std::to_string(SlotSet().size()) + " names");
    }
    result_.num_tensors = s_.tensors.size();
    for (size_t i = 0; i < s_.pattern.size(); ++i) add_line(static_cast<int>(i));
    for (const ExprPtr& condition : s_.conditions) add_condition(condition);
    result_.symmetries = find_symmetries(s_);
    collect_slots();
    set_mode();
    for (size_t i = 0; i < result_.lines.size(); ++i) add_plan(static_cast<int>(i));
    set_surroundings();
    if (result_.mode == CompiledPattern::Mode::FreeFamily) set_anchor();
    if (result_.plans.empty()) {
      throw SubstitutionError(
          s_.name, s_.line,
          "the lines of one member share no starred tensor, so members cannot be found one by one");
    }
    if (result_.mode == CompiledPattern::Mode::OrderedFamily) set_paths();
    return std::move(result_);
  }

 private:
  void add_line(int index) {
    const Line& line = s_.pattern[at(index)];
    const OpInfo& info = op_info(line.op);
    PatternLine compiled;
    compiled.kind = line.kind;
    compiled.op = line.op;
    compiled.ins = line.ins;
    compiled.outs = line.outs;
    compiled.rest = line.rest;
    if (line.kind == Line::Kind::ReadsFamily) {
      const auto it = std::find_if(line.ins.begin(), line.ins.end(),
                                   [&](int slot) { return s_.tensors[at(slot)].starred; });
      compiled.family_in = static_cast<int>(it - line.ins.begin());
      compiled.is_sum = line.op == Op::Sum && line.ins.size() == 1;
      result_.counts_uses |= compiled.is_sum;  // inner Adds must have no other readers
    } else if (is_commutative(line.op) && line.ins.size() == 2) {
      compiled.num_orders = 2;
    }
    std::vector<bool> is_named(info.attrs.size(), false);
    for (const LineAttribute& attribute : line.attrs) {
      is_named[at(attribute.index)] = true;
      const AttrKind kind = info.attrs[at(attribute.index)].kind;
      if (attribute.value->kind == Expr::Kind::Variable && !attribute.value->is_tensor) {
        compiled.bound_attrs.emplace_back(attribute.index, attribute.value->slot);
      } else if (is_literal(*attribute.value)) {
        const auto value = to_attribute(evaluate(*attribute.value, Graph(), Binding(), 0, -1), kind);
        if (!value) {
          throw SubstitutionError(
              s_.name, attribute.value->line,
              "the value of '" + info.attrs[at(attribute.index)].name + "' does not fit the attribute");
        }
        compiled.equal_attrs.emplace_back(attribute.index, *value);
      } else {
        const std::string text = info.name + "'s " + info.attrs[at(attribute.index)].name +
                                 " == " + print_expression(*attribute.value);
        result_.checks.push_back({level_of(*attribute.value), attribute.value, index, attribute.index, text});
      }
    }
    for (size_t i = 0; i < info.attrs.size() && line.rest < 0; ++i) {
      if (!is_named[i]) compiled.equal_attrs.emplace_back(static_cast<int>(i), info.attrs[i].default_value);
    }
    result_.lines.push_back(std::move(compiled));
  }

  static PatternCheck::Level level_of(const Expr& expr) {
    if (has_gather(expr)) return PatternCheck::Level::Family;
    return expr.starred ? PatternCheck::Level::Member : PatternCheck::Level::Plain;
  }

  void add_condition(const ExprPtr& expr) {
    if (expr->kind == Expr::Kind::Binary && expr->op == BinaryOp::And) {
      for (const ExprPtr& arg : expr->args) add_condition(arg);
      return;
    }
    const bool is_same = expr->kind == Expr::Kind::Call && expr->text == "same";
    result_.checks.push_back(
        {is_same ? PatternCheck::Level::Same : level_of(*expr), expr, -1, 0, print_expression(*expr)});
  }

  void collect_slots() {
    for (size_t i = 0; i < s_.tensors.size(); ++i) {
      const TensorVariable& tensor = s_.tensors[i];
      const auto slot = static_cast<int>(i);
      if (tensor.is_new || tensor.literal) continue;
      (tensor.starred ? result_.starred_tensors : result_.shared_tensors).push_back(slot);
      if (tensor.starred && tensor.producer < 0) result_.starred_inputs.push_back(slot);
    }
    for (size_t i = 0; i < s_.attributes.size(); ++i) {
      (s_.attributes[i].starred ? result_.starred_attributes : result_.shared_attributes)
          .push_back(static_cast<int>(i));
    }
    for (const Output& output : s_.outputs) {
      if (s_.tensors[at(output.old_slot)].starred) result_.starred_outputs.push_back(output.old_slot);
    }
  }

  bool orders_family(const PatternLine& line) const {
    return line.kind == Line::Kind::ReadsFamily || line.kind == Line::Kind::DefinesFamily;
  }

  void set_mode() {
    if (!s_.has_family) return;
    const bool ordered = std::any_of(result_.lines.begin(), result_.lines.end(),
                                     [this](const PatternLine& line) { return orders_family(line); });
    result_.mode = ordered ? CompiledPattern::Mode::OrderedFamily : CompiledPattern::Mode::FreeFamily;
  }

  // ---- neighbours

  /// Calls visit(producer line, reader line) for every tensor passed from one pattern line to another.
  template <class Visit>
  void for_each_edge(const Visit& visit) const {
    for (size_t i = 0; i < result_.lines.size(); ++i) {
      for (const int slot : result_.lines[i].ins) {
        if (slot == Line::kOmitted) continue;
        const TensorVariable& tensor = s_.tensors[at(slot)];
        if (!tensor.is_new && tensor.producer >= 0) visit(tensor.producer, static_cast<int>(i));
      }
    }
  }

  void set_surroundings() {
    for_each_edge([this](int producer, int reader) {
      PatternLine &from = result_.lines[at(producer)], &to = result_.lines[at(reader)];
      // Other Adds may stand between a tree of Adds and its leaves.
      if (!to.is_sum) from.needed.readers.add(to.op);
      if (!to.is_sum && !from.is_sum) to.needed.producers.add(from.op);
    });
  }

  void set_anchor() {
    for (size_t plan = 0; plan < result_.plans.size() && result_.anchor.plan < 0; ++plan) {
      if (!result_.plans[plan].after.empty()) return;
      const PatternLine& line = result_.lines[at(result_.plans[plan].start)];
      for (size_t i = 0; i < line.ins.size(); ++i) {
        const auto& shared = result_.shared_tensors;
        const auto it = std::find(shared.begin(), shared.end(), line.ins[i]);
        if (it == shared.end()) continue;
        result_.anchor = {static_cast<int>(plan), static_cast<int>(it - shared.begin()), static_cast<int>(i)};
        break;
      }
    }
  }

  /// Breadth-first search over lines that share a tensor.
  void set_paths() {
    const size_t count = result_.lines.size();
    std::vector<std::vector<int>> neighbours(count);
    for_each_edge([&](int producer, int reader) {
      neighbours[at(producer)].push_back(reader);
      neighbours[at(reader)].push_back(producer);
    });
    for (size_t i = 0; i < count; ++i) {  // readers of one tensor, if nothing nearer connects them
      for (size_t j = 0; j < count; ++j) {
        const auto& ins = result_.lines[j].ins;
        const bool share =
            std::any_of(result_.lines[i].ins.begin(), result_.lines[i].ins.end(), [&](int slot) {
              return slot != Line::kOmitted && std::find(ins.begin(), ins.end(), slot) != ins.end();
            });
        if (i != j && share) neighbours[i].push_back(static_cast<int>(j));
      }
    }
    result_.paths.resize(count);
    const int start = result_.plans.front().start;
    result_.paths[at(start)] = {start};
    std::vector<int> queue{start};
    for (size_t next = 0; next < queue.size(); ++next) {
      for (const int line : neighbours[at(queue[next])]) {
        if (!result_.paths[at(line)].empty()) continue;
        auto path = result_.paths[at(queue[next])];
        path.insert(path.begin(), line);
        result_.paths[at(line)] = std::move(path);
        queue.push_back(line);
      }
    }
  }

  // ---- plans

  struct Progress {
    SlotSet tensors;
    SlotSet attributes;
    std::vector<bool> is_done;
    std::vector<bool> is_checked;
  };

  void bind_line(Progress& progress, int index) const {
    const PatternLine& line = result_.lines[at(index)];
    for (const auto* slots : {&line.ins, &line.outs}) {
      for (const int slot : *slots) {
        if (slot != Line::kOmitted) progress.tensors.set(static_cast<size_t>(slot));
      }
    }
    for (const auto& [attribute, slot] : line.bound_attrs) progress.attributes.set(static_cast<size_t>(slot));
    progress.is_done[at(index)] = true;
  }

  /// Checks that have become decidable. Those of whole families run at the end, in the matcher.
  std::vector<int> due_checks(Progress& progress) const {
    std::vector<int> due;
    for (size_t i = 0; i < result_.checks.size(); ++i) {
      const PatternCheck& check = result_.checks[i];
      if (progress.is_checked[i] || check.level > PatternCheck::Level::Member) continue;
      SlotSet tensors, attributes;
      collect(*check.expr, tensors, attributes);
      if ((tensors & ~progress.tensors).any() || (attributes & ~progress.attributes).any()) continue;
      if (check.line >= 0 && !progress.is_done[at(check.line)]) continue;
      if (check.level == PatternCheck::Level::Member && !in_member_) continue;
      progress.is_checked[i] = true;
      due.push_back(static_cast<int>(i));
    }
    return due;
  }

  /// Adds lines of the wanted kind that touch a bound tensor. Producers first: they have only one candidate.
  void extend(Progress& progress, bool per_member, std::vector<PatternStep>& steps) const {
    while (true) {
      PatternStep best;
      bool found = false;
      for (size_t i = 0; i < result_.lines.size(); ++i) {
        const PatternLine& line = result_.lines[i];
        if (progress.is_done[i] || (line.kind == Line::Kind::PerMember) != per_member) continue;
        const auto look = [&](const std::vector<int>& slots, PatternStep::Via via) {
          for (size_t p = 0; p < slots.size(); ++p) {
            const int slot = slots[p];
            if (slot == Line::kOmitted || !progress.tensors.test(static_cast<size_t>(slot))) continue;
            const TensorVariable& tensor = s_.tensors[at(slot)];
            if (tensor.literal) continue;
            // The matcher finds a whole family of inputs or outputs through its first member.
            if (!found || (best.via == PatternStep::Via::Input && via == PatternStep::Via::Output)) {
              best = {static_cast<int>(i), via, slot, static_cast<int>(p), {}};
              found = true;
            }
          }
        };
        look(line.outs, PatternStep::Via::Output);
        look(line.ins, PatternStep::Via::Input);
      }
      if (!found) return;
      bind_line(progress, best.line);
      best.checks = due_checks(progress);
      steps.push_back(std::move(best));
    }
  }

  static bool all_done(const Progress& progress) {
    return std::all_of(progress.is_done.begin(), progress.is_done.end(), [](bool done) { return done; });
  }

  void add_plan(int start) {
    const bool is_member = result_.lines[at(start)].kind == Line::Kind::PerMember;
    if (is_member != (result_.mode == CompiledPattern::Mode::FreeFamily)) return;
    PatternPlan plan;
    plan.start = start;
    Progress progress;
    progress.is_done.resize(result_.lines.size(), false);
    progress.is_checked.resize(result_.checks.size(), false);
    in_member_ = is_member;
    bind_line(progress, start);
    auto& first = is_member ? plan.member : plan.before;
    first.push_back({start, PatternStep::Via::Start, -1, 0, due_checks(progress)});
    extend(progress, is_member, first);
    if (!is_member && s_.has_family) {
      const bool has_order =
          std::any_of(plan.before.begin(), plan.before.end(),
                      [&](const PatternStep& step) { return orders_family(result_.lines[at(step.line)]); });
      if (!has_order) return;
      in_member_ = true;
      extend(progress, true, plan.member);
    }
    in_member_ = false;
    extend(progress, false, plan.after);
    if (!all_done(progress)) return;
    for (size_t i = 0; i < result_.checks.size(); ++i) {
      if (!progress.is_checked[i]) plan.final_checks.push_back(static_cast<int>(i));
    }
    result_.plans.push_back(std::move(plan));
  }

  const Substitution& s_;
  CompiledPattern result_;
  bool in_member_ = false;
};

}  // namespace

Surroundings surroundings(const Graph& graph, NodeId id) {
  Surroundings found;
  for (const Value& input : graph.node(id).inputs) {
    if (input.present()) found.producers.add(graph.node(input.node).op);
  }
  for (const Use& use : graph.uses(id)) {
    if (use.node >= 0) found.readers.add(graph.node(use.node).op);
  }
  return found;
}

CompiledPattern compile_pattern(const Substitution& substitution) { return Compiler(substitution).run(); }

}  // namespace rlopt
