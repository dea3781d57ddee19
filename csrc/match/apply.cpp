#include "match/apply.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_map>
#include <unordered_set>

#include "core/unique.h"
#include "infer/infer.h"

namespace rlopt {

namespace {

/// Why a match cannot be applied; used only in this file.
struct Refusal {
  std::string reason;
};

/// Whether the dtype can hold this number, up to floating-point rounding. Overflow to infinity and
/// wrap-around give another number.
bool holds_number(DType dtype, double number) {
  if (is_floating(dtype)) {
    const double largest = dtype == DType::f64   ? std::numeric_limits<double>::max()
                           : dtype == DType::f32 ? std::numeric_limits<float>::max()
                           : dtype == DType::f16 ? 65504
                                                 : 0x1.FEp127;  // bf16
    return !std::isfinite(number) || std::fabs(number) <= largest;
  }
  if (number != std::floor(number) || std::fabs(number) >= kMaxExactInteger) return false;
  const bool is_unsigned = dtype >= DType::u8;
  const double end = std::ldexp(1.0, 8 * dtype_bytes(dtype) - (is_unsigned ? 0 : 1));
  return number >= (is_unsigned ? 0 : -end) && number < end;
}

class Applier {
 public:
  Applier(const Graph& graph, const Library& library, const Match& match, const TopologicalOrder* order)
      : graph_(graph),
        order_(order),
        substitution_(library.substitutions()[at(match.substitution)]),
        match_(match),
        binding_(match.binding),
        edit_(graph) {}

  Applied run() {
    Applied applied;
    try {
      for (const Line& line : substitution_.replacement) build(line);
      redirect_outputs();
    } catch (const Refusal& refusal) {
      applied.refusal = refusal.reason;
      return applied;
    }
    for (const NodeId id : match_.nodes) edit_.remove_if_dead(id);
    for (NodeId id = graph_.end_id(); id < edit_.graph().end_id(); ++id) edit_.remove_if_dead(id);
    if (closes_cycle()) {
      applied.refusal = "a cycle would close: a matched tensor depends on an output of the match";
      return applied;
    }
    report(applied);
    applied.graph = edit_.finish();
    return applied;
  }

 private:
  // ---- the replacement

  void build(const Line& line) {
    const bool is_each = line.kind == Line::Kind::PerMember;
    for (const int slot : line.outs) {
      if (is_each && slot != Line::kOmitted)
        binding_.family_tensors[at(slot)].assign(at(match_.num_members), Binding::kUnbound);
    }
    for (int m = is_each ? 0 : -1; m < (is_each ? match_.num_members : 0); ++m) {
      const NodeId id = build_node(line, m);
      if (line.kind == Line::Kind::DefinesFamily) return define_family(line, id);
      for (size_t i = 0; i < line.outs.size(); ++i) {
        if (line.outs[i] != Line::kOmitted) binding_.tensor(line.outs[i], m) = output(line, id, i);
      }
    }
  }

  Value output(const Line& line, NodeId id, size_t index) const {
    const Node& node = edit_.graph().node(id);
    if (node.num_outputs() != static_cast<int>(line.outs.size())) {
      throw Refusal{node.info().name + " of the replacement would have " +
                    std::to_string(node.num_outputs()) + " outputs instead of " +
                    std::to_string(line.outs.size())};
    }
    return {id, static_cast<int32_t>(index)};
  }

  void define_family(const Line& line, NodeId id) {
    const int count = edit_.graph().node(id).num_outputs();
    if (count != match_.num_members) {
      throw Refusal{op_info(line.op).name + " of the replacement would have " + std::to_string(count) +
                    " outputs for a family of " + std::to_string(match_.num_members)};
    }
    auto& values = binding_.family_tensors[at(line.outs[0])];
    values.clear();
    for (int i = 0; i < count; ++i) values.push_back({id, i});
  }

  NodeId build_node(const Line& line, int member) {
    if (line.op == Op::Constant) return build_constant(line, member);
    std::vector<Value> inputs;
    for (const int slot : line.ins) {
      if (slot == Line::kOmitted) {
        inputs.push_back({});
        continue;
      }
      const TensorVariable& tensor = substitution_.tensors[at(slot)];
      if (tensor.literal) {
        inputs.push_back(scalar(*tensor.literal, dtype_of_first(line, member)));
      } else if (tensor.starred && line.kind == Line::Kind::ReadsFamily) {
        const auto& values = binding_.family_tensors[at(slot)];
        inputs.insert(inputs.end(), values.begin(), values.end());
      } else {
        inputs.push_back(value_of(slot, member));
      }
    }
    AttrsPtr attrs = attributes(line, member);
    if (const auto existing = find_equal(line.op, *attrs, inputs)) return *existing;
    try {
      return add_inferred(edit_, line.op, std::move(attrs), std::move(inputs));
    } catch (const TypeError& error) {
      throw Refusal{std::string("the replacement does not fit: ") + error.what()};
    }
  }

  Value value_of(int slot, int member) const {
    return binding_.tensor(slot, substitution_.tensors[at(slot)].starred ? member : -1);
  }

  DType dtype_of_first(const Line& line, int member) const {
    for (const int slot : line.ins) {
      if (slot == Line::kOmitted || substitution_.tensors[at(slot)].literal) continue;
      return edit_.graph().type(value_of(slot, std::max(member, 0))).dtype;
    }
    throw Refusal{"a literal operand of " + op_info(line.op).name +
                  " has no tensor beside it to take its dtype from"};
  }

  Value scalar(double number, DType dtype) {
    if (!is_floating(dtype) && !is_integer(dtype)) {
      throw Refusal{std::string("no scalar constants of dtype ") + dtype_name(dtype)};
    }
    if (!holds_number(dtype, number)) {
      throw Refusal{"the constant " + attr_str(number) + " is no " + dtype_name(dtype)};
    }
    const AttrsPtr attrs =
        is_floating(dtype) ? Attrs::make(Op::Constant, {{"value", Floats{number}}})
                           : Attrs::make(Op::Constant, {{"int_value", Ints{static_cast<int64_t>(number)}}});
    return {edit_.add_node(Op::Constant, attrs, {}, {TensorType{dtype, true, {}}}), 0};
  }

  /// `Constant(x; value=[v])`: a 0-d constant of x's dtype.
  NodeId build_constant(const Line& line, int member) {
    const AttrsPtr attrs = attributes(line, member);
    const auto& values = std::get<Floats>(attrs->get(op_info(Op::Constant), "value"));
    if (values.size() != 1) throw Refusal{"Constant of the replacement needs one value"};
    if (!std::isfinite(values[0])) throw Refusal{"the constant of the replacement is " + attr_str(values[0])};
    return scalar(values[0], dtype_of_first(line, member)).node;
  }

  AttrsPtr attributes(const Line& line, int member) const {
    const OpInfo& info = op_info(line.op);
    std::vector<std::pair<std::string, AttrValue>> given;
    if (line.rest >= 0) {
      const RestVariable& rest = substitution_.rests[at(line.rest)];
      for (const int index : rest.attributes) {
        given.emplace_back(op_info(rest.op).attrs[at(index)].name,
                           binding_.rests[at(line.rest)]->values()[at(index)]);
      }
    }
    for (const LineAttribute& attribute : line.attrs) {
      const AttrSpec& spec = info.attrs[at(attribute.index)];
      const Bound value = evaluate(*attribute.value, edit_.graph(), binding_, match_.num_members, member);
      const auto attr = to_attribute(value, spec.kind);
      if (!attr) {
        throw Refusal{"attribute " + spec.name + " of " + info.name + " cannot be computed: " +
                      print_expression(*attribute.value) + " is " + bound_str(value)};
      }
      given.emplace_back(spec.name, *attr);
    }
    try {
      return Attrs::make(line.op, given);
    } catch (const TypeError& error) {
      throw Refusal{std::string("the replacement does not fit: ") + error.what()};
    }
  }

  /// An existing node that computes the same: a second one would only hide from other substitutions that both
  /// are equal.
  std::optional<NodeId> find_equal(Op op, const Attrs& attrs, const std::vector<Value>& inputs) const {
    if (inputs.empty() || !inputs[0].present()) return std::nullopt;
    for (const Use& use : edit_.graph().uses(inputs[0].node)) {
      if (use.node < 0 || use.slot != 0) continue;
      const Node& node = edit_.graph().node(use.node);
      if (node.op != op || node.inputs != inputs || !(*node.attrs == attrs)) continue;
      // A node that is being replaced must not be part of its own replacement: its readers are about to move.
      if (!defines_output(use.node)) return use.node;
    }
    return std::nullopt;
  }

  std::span<const Value> old_values(const Output& output) const {
    return match_.binding.values(output.old_slot, substitution_.tensors[at(output.old_slot)].starred);
  }

  bool defines_output(NodeId id) const {
    return std::any_of(substitution_.outputs.begin(), substitution_.outputs.end(), [&](const Output& output) {
      const auto values = old_values(output);
      return std::any_of(values.begin(), values.end(), [&](Value value) { return value.node == id; });
    });
  }

  // ---- insertion

  void redirect_outputs() {
    bool changes = false;
    const auto redirect = [&](Value from, Value to) {
      redirected_.emplace_back(from, to);
      if (from == to) return;
      changes = true;
      const TensorType &old_type = edit_.graph().type(from), &new_type = edit_.graph().type(to);
      if (!(old_type == new_type)) {
        throw Refusal{"an output would change its type from " + old_type.str() + " to " + new_type.str()};
      }
      edit_.redirect(from, to);
    };
    for (const Output& output : substitution_.outputs) {
      const auto from = old_values(output);
      const auto to = binding_.values(output.new_slot, substitution_.tensors[at(output.old_slot)].starred);
      for (size_t m = 0; m < from.size(); ++m) redirect(from[m], to[m]);
    }
    if (!changes) throw Refusal{"nothing would change"};
  }

  /// The replacement depends only on what the pattern depended on, so with one output no cycle can close.
  bool closes_cycle() const {
    if (redirected_.size() < 2) return false;
    const Graph& graph = edit_.graph();
    // A cycle leads back from a new output to a reader of an old one: nothing before all of these matters.
    double first = -1;
    if (order_ != nullptr) {
      first = order_->position(redirected_.front().first.node);
      for (const auto& [from, to] : redirected_) first = std::min(first, order_->position(from.node));
    }
    const auto is_before = [&](NodeId id) {
      return order_ != nullptr && id < graph_.end_id() && order_->position(id) <= first;
    };
    std::unordered_map<NodeId, bool> is_open;  // on the current path
    std::vector<std::pair<NodeId, size_t>> path;
    for (const auto& [from, to] : redirected_) {
      const NodeId start = to.node;
      if (!graph.alive(start) || !is_open.emplace(start, true).second) continue;
      path.emplace_back(start, 0);
      while (!path.empty()) {
        auto& [id, next] = path.back();
        const Node& node = graph.node(id);
        if (next == node.inputs.size()) {
          is_open[id] = false;
          path.pop_back();
          continue;
        }
        const Value input = node.inputs[next++];
        if (!input.present() || is_before(input.node)) continue;
        const auto [it, is_new] = is_open.emplace(input.node, true);
        if (is_new) {
          path.emplace_back(input.node, 0);
        } else if (it->second) {
          return true;
        }
      }
    }
    return false;
  }

  void report(Applied& applied) const {
    const Graph& graph = edit_.graph();
    Change& change = applied.change;
    for (NodeId id = graph_.end_id(); id < graph.end_id(); ++id) {
      if (graph.alive(id)) change.added.push_back(id);
    }
    // Removed nodes were matched, or lost a removed reader.
    change.removed = match_.nodes;
    change.removed.insert(change.removed.end(), edit_.reread().begin(), edit_.reread().end());
    change.reread = edit_.reread();
    change.changed = edit_.touched();
    const auto keep = [&](std::vector<NodeId>& ids, bool alive) {
      std::erase_if(ids, [&](NodeId id) { return id >= graph_.end_id() || graph.alive(id) != alive; });
      sort_unique(ids);
    };
    keep(change.removed, false);
    keep(change.reread, true);
    keep(change.changed, true);
    applied.redirected = redirected_;
  }

  const Graph& graph_;
  const TopologicalOrder* order_;
  const Substitution& substitution_;
  const Match& match_;
  Binding binding_;
  GraphEdit edit_;
  std::vector<std::pair<Value, Value>> redirected_;
};

/// Nodes outside `inside` on which a value depends directly; leaves depend on nothing.
template <class Inside>
std::vector<NodeId> direct_dependences(const Graph& graph, NodeId start, const Inside& inside) {
  std::vector<NodeId> found, stack{start};
  std::unordered_set<NodeId> seen{start};
  while (!stack.empty()) {
    const NodeId id = stack.back();
    stack.pop_back();
    const Node& node = graph.node(id);
    if (node.info().cost_class == CostClass::Leaf) continue;
    if (!inside(id)) {
      found.push_back(id);
      continue;
    }
    for (const Value& input : node.inputs) {
      if (input.present() && seen.insert(input.node).second) stack.push_back(input.node);
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace

bool moves_dependence(const Graph& before, const Match& match, const Applied& applied) {
  const Graph& after = *applied.graph;
  // A matched node with other readers survives like any other.
  const auto has_died = [&](NodeId id) {
    return !after.alive(id) && std::find(match.nodes.begin(), match.nodes.end(), id) != match.nodes.end();
  };
  const auto is_new = [&](NodeId id) { return id >= before.end_id(); };
  return std::any_of(applied.redirected.begin(), applied.redirected.end(), [&](const auto& pair) {
    if (!after.alive(pair.second.node)) return false;  // nothing reads it
    return direct_dependences(before, pair.first.node, has_died) !=
           direct_dependences(after, pair.second.node, is_new);
  });
}

Applied apply_match(const Graph& graph, const Library& library, const Match& match,
                    const TopologicalOrder* order) {
  return Applier(graph, library, match, order).run();
}

}  // namespace rlopt
