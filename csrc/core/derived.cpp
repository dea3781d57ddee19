// What a node's neighbours say of it: static, the same wherever it runs, bound to keep its bits.
#include <algorithm>

#include "core/graph.h"

namespace rlopt {

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
    if (reader.op == Op::Cast && is_real(reader.types->front())) return reader.keeps_bits;
    return reader.keeps_bits || reader.info().is(kJumps);
  };
  keeps_bits = is_reproducible && info.cost_class != CostClass::Leaf &&
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
