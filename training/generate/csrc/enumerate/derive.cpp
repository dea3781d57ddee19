#include "enumerate/derive.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

namespace rlopt {

namespace {

Ints from_front(Ints axes, int rank) {
  for (int64_t& axis : axes) axis += axis < 0 ? rank : 0;
  return axes;
}

/// Hash of an attribute, independent of its spelling.
uint64_t attribute_hash(const Graph& graph, const Node& node, size_t index) {
  const std::string& name = node.info().attrs[index].name;
  const AttrValue& value = node.attrs->values()[index];
  const int rank = node.inputs.empty() || !node.inputs[0].present() ? 0 : graph.type(node.inputs[0]).rank();
  if (name == "axis") return hash_string(attr_str(from_front({std::get<int64_t>(value)}, rank)[0]));
  if (name == "axes") {
    Ints axes = from_front(std::get<Ints>(value), node.op == Op::Unsqueeze ? rank + 1 : rank);
    std::sort(axes.begin(), axes.end());
    return hash_string(attr_str(axes));
  }
  if (name == "strides" || name == "dilations" || name == "steps" || name == "pads") {
    const auto& list = std::get<Ints>(value);
    const int64_t neutral = name == "pads" ? 0 : 1;
    if (std::all_of(list.begin(), list.end(), [&](int64_t each) { return each == neutral; })) return 1;
  }
  if (name == "shape" && node.op == Op::Reshape) {
    return hash_string(node.types->front().str());
  }
  if (name == "perm" && std::get<Ints>(value).empty()) {
    Ints perm;
    for (int i = rank; i > 0; --i) perm.push_back(i - 1);
    return hash_string(attr_str(perm));
  }
  return hash_string(attr_str(value));
}

}  // namespace

uint64_t normalised_hash(const Graph& graph) {
  std::unordered_map<NodeId, uint64_t> hashes;
  for (size_t i = 0; i < graph.inputs().size(); ++i) hashes[graph.inputs()[i]] = hash_mix(3, i);
  for (const NodeId id : graph.topological_order()) {
    const Node& node = graph.node(id);
    if (hashes.contains(id)) continue;
    uint64_t hash = static_cast<uint64_t>(node.op);
    for (size_t i = 0; i < node.info().attrs.size(); ++i) {
      hash = hash_mix(hash, attribute_hash(graph, node, i));
    }
    std::vector<uint64_t> ins;
    for (const Value& in : node.inputs) {
      ins.push_back(in.present() ? hash_mix(hashes.at(in.node), static_cast<uint64_t>(in.index)) : 0);
    }
    while (!ins.empty() && ins.back() == 0) ins.pop_back();  // omitted trailing inputs do not count
    if (is_commutative(node.op)) std::sort(ins.begin(), ins.end());
    for (const uint64_t in : ins) hash = hash_mix(hash, in);
    hashes[id] = hash;
  }
  uint64_t total = graph.outputs().size();
  for (const Value& output : graph.outputs()) {
    total = hash_mix(total, hash_mix(hashes.at(output.node), static_cast<uint64_t>(output.index)));
  }
  return total;
}

std::vector<Step> derive(const Graph& before, const Graph& after, const Library& library,
                         const DeriveOptions& options) {
  struct State {
    Graph graph;
    std::vector<Step> steps;
    double cost = 0;
  };
  const uint64_t goal = normalised_hash(after);
  const auto price = [&](const Graph& graph) {
    return options.cost == nullptr ? 0.0 : options.cost->total(graph).time_us;
  };
  std::vector<State> level{{before, {}, price(before)}};
  std::unordered_set<uint64_t> seen{normalised_hash(before)};
  int num_expanded = 0;
  for (int depth = 0; depth < options.max_steps; ++depth) {
    std::vector<State> next;
    for (const State& state : level) {
      if (++num_expanded > options.max_graphs) return {};
      int previous = -1, location = 0;
      for (const Match& match : find_all_matches(state.graph, library)) {
        location = match.substitution == previous ? location + 1 : 0;
        previous = match.substitution;
        const Applied applied = apply_match(state.graph, library, match);
        if (!applied.graph) continue;
        const double cost = price(*applied.graph);
        if (cost > state.cost * (1 + 1e-9)) continue;
        const uint64_t hash = normalised_hash(*applied.graph);
        if (!seen.insert(hash).second) continue;
        std::vector<Step> steps = state.steps;
        steps.push_back({match.substitution, location});
        if (hash == goal) return steps;
        next.push_back({*applied.graph, std::move(steps), cost});
      }
    }
    level = std::move(next);
  }
  return {};
}

}  // namespace rlopt
