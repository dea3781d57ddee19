// Checks whole graphs: wiring, recorded uses, and types against inference.
#include <algorithm>
#include <string>
#include <vector>

#include "infer/infer.h"

namespace rlopt {

void check_graph(const Graph& graph) {
  std::vector<int> seen_uses(static_cast<size_t>(graph.end_id()), 0);
  const auto where = [](NodeId id, const Node& node) {
    return "node " + std::to_string(id) + " (" + node.info().name + " '" + node.names->node + "'): ";
  };
  const auto check_use = [&](Value value, Use use, const std::string& reader) {
    if (!graph.alive(value.node)) throw TypeError(reader + "reads a dead node");
    const auto& uses = graph.uses(value.node);
    if (std::count(uses.begin(), uses.end(), use) != 1) throw TypeError(reader + "is not recorded as a use");
    ++seen_uses[at(value.node)];
  };
  for (const NodeId id : graph.topological_order()) {
    const Node& node = graph.node(id);
    const OpInfo& info = node.info();
    const auto count = static_cast<int>(node.inputs.size());
    if (count < info.min_inputs || (info.max_inputs >= 0 && count > info.max_inputs)) {
      throw TypeError(where(id, node) + "has " + std::to_string(count) + " inputs");
    }
    std::vector<const TensorType*> types;
    for (int i = 0; i < count; ++i) {
      const Value input = node.inputs[at(i)];
      types.push_back(input.present() ? &graph.type(input) : nullptr);
      if (!input.present()) continue;
      check_use(input, {id, i}, where(id, node));
    }
    if (!(Derived(graph, id) == node)) throw TypeError(where(id, node) + "has wrong flags");
    if (info.infer == InferRule::Leaf) continue;
    if (infer_types(node.op, *node.attrs, types) != *node.types) {
      throw TypeError(where(id, node) + "has types that inference does not give");
    }
  }
  for (size_t i = 0; i < graph.outputs().size(); ++i) {
    check_use(graph.outputs()[i], {-1, static_cast<int32_t>(i)},
              "graph output " + graph.output_names()[i] + ": ");
  }
  for (NodeId id = 0; id < graph.end_id(); ++id) {
    if (graph.alive(id) && static_cast<int>(graph.uses(id).size()) != seen_uses[at(id)]) {
      throw TypeError(where(id, graph.node(id)) + "records uses that do not exist");
    }
  }
}

}  // namespace rlopt
