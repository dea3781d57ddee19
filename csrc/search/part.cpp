#include "search/part.h"

#include <algorithm>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>

namespace rlopt {

namespace {

bool is_leaf(const Graph& graph, NodeId id) { return graph.node(id).info().cost_class == CostClass::Leaf; }

/// By position in the order: number of values made before it and read at or after it.
std::vector<int> count_crossings(const Graph& graph, const std::vector<NodeId>& order) {
  std::vector<int> position(at(graph.end_id()), -1);
  for (size_t i = 0; i < order.size(); ++i) position[at(order[i])] = static_cast<int>(i);
  std::vector<int> crossings(order.size() + 1, 0);
  for (const NodeId id : order) {
    int last = position[at(id)];
    for (const Use& use : graph.uses(id)) {
      if (use.node >= 0) last = std::max(last, position[at(use.node)]);
    }
    // One more after the node, one less after its last reader.
    ++crossings[at(position[at(id)]) + 1];
    --crossings[at(last) + 1];
  }
  for (size_t i = 1; i < crossings.size(); ++i) crossings[i] += crossings[i - 1];
  return crossings;
}

class Cutter {
 public:
  Cutter(const Graph& graph, const NodeId* begin, const NodeId* end)
      : graph_(graph), ids_(begin, end), inside_(begin, end) {
    std::sort(inside_.begin(), inside_.end());
  }

  Part run() {
    for (const NodeId id : ids_) {
      const Node& node = graph_.node(id);
      std::vector<Value> inputs;
      for (const Value& input : node.inputs) inputs.push_back(here(input));
      note(edit_.add_node(node.op, node.attrs, std::move(inputs), *node.types), id);
    }
    set_outputs();
    part_.graph = edit_.finish();
    return std::move(part_);
  }

 private:
  bool is_inside(NodeId id) const { return std::binary_search(inside_.begin(), inside_.end(), id); }

  void note(NodeId id, NodeId origin) {
    part_.origins.push_back(origin);
    ids_here_[origin] = id;
  }

  /// A value of the graph in the part; becomes an input of the part if it comes from outside.
  Value here(Value value) {
    if (!value.present()) return value;
    if (const auto found = ids_here_.find(value.node); found != ids_here_.end()) {
      return {found->second, value.index};
    }
    const Node& node = graph_.node(value.node);
    if (node.op == Op::Constant) {
      note(edit_.add_node(node.op, node.attrs, {}, *node.types), value.node);
      return {ids_here_.at(value.node), value.index};
    }
    const auto [found, is_new] = outside_.emplace(value, 0);
    if (is_new) {
      found->second = edit_.add_input("", graph_.type(value), node.is_static);
      part_.origins.push_back(value.node);
    }
    return {found->second, 0};
  }

  void set_outputs() {
    std::vector<Value> outputs;
    for (const NodeId id : ids_) {
      std::vector<bool> is_read(at(graph_.node(id).num_outputs()), false);
      for (const Use& use : graph_.uses(id)) {
        if (use.node >= 0 && is_inside(use.node)) continue;
        const Value read =
            use.node < 0 ? graph_.outputs()[at(use.slot)] : graph_.node(use.node).inputs[at(use.slot)];
        is_read[at(read.index)] = true;
      }
      for (int i = 0; i < static_cast<int>(is_read.size()); ++i) {
        if (is_read[at(i)]) outputs.push_back({ids_here_.at(id), i});
      }
    }
    edit_.set_outputs(outputs, std::vector<std::string>(outputs.size()));
  }

  const Graph& graph_;
  const std::vector<NodeId> ids_;
  std::vector<NodeId> inside_;
  GraphEdit edit_;
  Part part_;
  std::unordered_map<NodeId, NodeId> ids_here_;
  std::map<Value, NodeId> outside_;  // inputs of the part
};

}  // namespace

Cut cut(const Graph& graph, size_t size) {
  Cut result;
  result.order = graph.topological_order();
  std::erase_if(result.order, [&](NodeId id) { return is_leaf(graph, id); });
  const std::vector<int> crossings = count_crossings(graph, result.order);
  const size_t end = result.order.size();
  size_t first = 0;
  while (first < end) {
    result.borders.push_back(first);
    const size_t middle = first + size, last = middle + size / 2;
    if (last >= end) break;
    size_t best = middle;
    for (size_t i = first + (size + 1) / 2; i <= last; ++i) {
      const auto distance = [&](size_t place) { return place < middle ? middle - place : place - middle; };
      if (std::pair(crossings[i], distance(i)) < std::pair(crossings[best], distance(best))) best = i;
    }
    first = best;
  }
  result.borders.push_back(end);
  return result;
}

Part part_of(const Graph& graph, const Cut& cut, size_t begin, size_t end) {
  return Cutter(graph, cut.order.data() + begin, cut.order.data() + end).run();
}

}  // namespace rlopt
