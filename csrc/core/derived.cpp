// Facts about a node that depend on its neighbours: whether it is static, is reproducible, and has to keep
// its bits.
#include <algorithm>
#include <cmath>
#include <utility>

#include "core/graph.h"
#include "core/unique.h"

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

/// Whether the last digit of this input may decide the result: because it is rounded, or because the result
/// may be undefined.
bool jumps_at(const Graph& graph, const Node& node, int slot) {
  switch (node.op) {
    case Op::Cast:
      return !is_floating(node.types->front().dtype);
    case Op::Div:
      return slot == 1;  // a zero divisor
    case Op::Pow:
      return !is_whole_power(graph, node.inputs[1]);
    default:
      return node.info().is(kJumps);
  }
}

/// Whether its bits have to be kept if a reader needs them. Expressions over weights are evaluated once, by
/// PyTorch, in whatever form.
bool has_bits_to_keep(const Node& node, bool is_reproducible, bool is_static) {
  return is_reproducible && !is_static && node.info().cost_class != CostClass::Leaf &&
         std::any_of(node.types->begin(), node.types->end(),
                     [](const TensorType& type) { return is_floating(type.dtype); });
}

}  // namespace

Derived::Derived(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  const OpInfo& info = node.info();
  const auto is_real = [](const TensorType& type) { return is_floating(type.dtype); };
  // The result of an opaque node (a random number, say) is unknown.
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
  // Check the readers last: there may be very many.
  keeps_bits = has_bits_to_keep(node, is_reproducible, is_static) &&
               std::any_of(graph.uses(id).begin(), graph.uses(id).end(), may_jump);
}

/// A new reader can change only one thing about its producers: their bits have to be kept from now on.
/// Checking all their other readers each time would cost n * n for n readers of a value.
void GraphEdit::refresh_producers_of_new(NodeId id) {
  std::vector<NodeId> jumped;
  const NodePtr node = graph_.nodes_[at(id)];
  for (size_t i = 0; i < node->inputs.size(); ++i) {
    if (!node->inputs[i].present() || !jumps_at(graph_, *node, static_cast<int>(i))) continue;
    const Node& producer = graph_.node(node->inputs[i].node);
    if (!producer.keeps_bits && has_bits_to_keep(producer, producer.is_reproducible, producer.is_static)) {
      jumped.push_back(node->inputs[i].node);
    }
  }
  refresh(std::move(jumped));
}

void GraphEdit::refresh(std::vector<NodeId> ids) {
  // In rounds: a node whose n inputs all change in one round is visited once, not n times.
  std::vector<NodeId> next;
  while (!ids.empty()) {
    sort_unique(ids);
    for (const NodeId id : ids) {
      if (!graph_.alive(id)) continue;
      const Derived derived(graph_, id);
      const Node& old = graph_.node(id);
      if (derived == old) continue;
      const bool is_other_to_readers =
          derived.is_static != old.is_static || derived.is_reproducible != old.is_reproducible;
      const bool is_other_to_producers = derived.keeps_bits != old.keeps_bits;
      auto changed = std::make_shared<Node>(old);
      changed->is_static = derived.is_static;
      changed->is_reproducible = derived.is_reproducible;
      changed->keeps_bits = derived.keeps_bits;
      touched_.push_back(id);
      for (const Use& use : graph_.uses(id)) {
        if (use.node < 0) continue;
        if (is_other_to_readers) next.push_back(use.node);
        touched_.push_back(use.node);
      }
      for (const Value& input : changed->inputs) {
        if (is_other_to_producers && input.present()) next.push_back(input.node);
      }
      graph_.nodes_.set(static_cast<size_t>(id), std::move(changed));
    }
    ids = std::exchange(next, {});
  }
}

}  // namespace rlopt
