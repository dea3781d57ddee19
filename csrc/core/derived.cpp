// What a node's neighbours say of it: static, the same wherever it runs, bound to keep its bits.
#include <algorithm>
#include <cmath>

#include "core/graph.h"

namespace rlopt {

namespace {

bool is_whole_power(const Graph& graph, Value exponent) {
  const Node& node = graph.node(exponent.node);
  if (node.op != Op::Constant) return false;
  const auto& values = std::get<Floats>(node.attr("value"));
  return !values.empty() && std::all_of(values.begin(), values.end(), [](double value) {
    return value >= 0 && std::floor(value) == value;
  });
}

/// Whether the last digit of this input may decide: what it is rounded to, or whether there is a number at
/// all.
bool jumps_at(const Graph& graph, const Node& node, int slot) {
  switch (node.op) {
    case Op::Cast:
      return !is_floating(node.types->front().dtype);
    case Op::Div:
      return slot == 1;  // a zero
    case Op::Pow:
      return !is_whole_power(graph, node.inputs[1]);
    default:
      return node.info().is(kJumps);
  }
}

}  // namespace

Derived::Derived(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  const OpInfo& info = node.info();
  const auto is_real = [](const TensorType& type) { return is_floating(type.dtype); };
  // What an opaque node computes (a random number, say) is unknown.
  is_static =
      node.op == Op::Weight || node.op == Op::Constant || (node.op != Op::Opaque && !node.inputs.empty());
  is_reproducible = info.is(kSameBits);
  for (const Value& input : node.inputs) {
    if (!input.present()) continue;
    is_static = is_static && graph.is_static(input);
    is_reproducible =
        is_reproducible && (graph.node(input.node).is_reproducible || !is_real(graph.type(input)));
  }
  const auto may_jump = [&](const Use& use) {
    if (use.node < 0) return false;
    const Node& reader = graph.node(use.node);
    return reader.keeps_bits || jumps_at(graph, reader, use.slot);
  };
  // Expressions over weights are evaluated once, by PyTorch, in whatever form.
  keeps_bits = is_reproducible && !is_static && info.cost_class != CostClass::Leaf &&
               std::any_of(node.types->begin(), node.types->end(), is_real) &&
               std::any_of(graph.uses(id).begin(), graph.uses(id).end(), may_jump);
}

void GraphEdit::refresh(NodeId start) {
  std::vector<NodeId> stack{start};
  if (graph_.alive(start)) {
    for (const Value& input : graph_.node(start).inputs) {
      if (input.present()) stack.push_back(input.node);
    }
  }
  while (!stack.empty()) {
    const NodeId id = stack.back();
    stack.pop_back();
    if (!graph_.alive(id)) continue;
    const Derived derived(graph_, id);
    if (derived == graph_.node(id)) continue;
    auto changed = std::make_shared<Node>(graph_.node(id));
    changed->is_static = derived.is_static;
    changed->is_reproducible = derived.is_reproducible;
    changed->keeps_bits = derived.keeps_bits;
    graph_.nodes_.set(static_cast<size_t>(id), changed);
    touched_.push_back(id);
    for (const Use& use : graph_.uses(id)) {
      if (use.node < 0) continue;
      stack.push_back(use.node);
      touched_.push_back(use.node);
    }
    for (const Value& input : changed->inputs) {
      if (input.present()) stack.push_back(input.node);
    }
  }
}

}  // namespace rlopt
