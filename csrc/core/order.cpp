#include "core/order.h"

#include <algorithm>
#include <limits>
#include <unordered_set>

namespace rlopt {

namespace {

constexpr double kNoReader = std::numeric_limits<double>::infinity();
constexpr double kMinGap = 1e-9;  // relative to the position: below it doubles run out of digits

size_t at(NodeId id) { return static_cast<size_t>(id); }

}  // namespace

Change compare(const Graph& before, const Graph& after) {
  Change change;
  for (NodeId id = 0; id < std::max(before.end_id(), after.end_id()); ++id) {
    const bool was = before.alive(id), is = after.alive(id);
    if (!was && !is) continue;
    if (!was) {
      change.added.push_back(id);
    } else if (!is) {
      change.removed.push_back(id);
    } else {
      if (&before.node(id) != &after.node(id)) change.changed.push_back(id);
      if (&before.uses(id) != &after.uses(id)) change.reread.push_back(id);
    }
  }
  return change;
}

void TopologicalOrder::number(const Graph& graph) {
  positions_ = {};
  for (NodeId id = 0; id < graph.end_id(); ++id) positions_.push_back(0);
  double next = 0;
  for (const NodeId id : graph.topological_order()) positions_.set(at(id), next++);
}

void TopologicalOrder::update(const Graph& after, const Change& change) {
  while (positions_.size() < at(after.end_id())) positions_.push_back(0);
  if (!place(after, change)) number(after);
}

/// False where the old positions leave no room.
bool TopologicalOrder::place(const Graph& after, const Change& change) {
  // Added nodes have ascending ids along their edges, but for those of a chain that reads a later one.
  const auto is_added = [&](NodeId id) {
    return std::binary_search(change.added.begin(), change.added.end(), id);
  };
  std::vector<double> ceilings(change.added.size(), kNoReader);
  for (size_t i = change.added.size(); i-- > 0;) {
    for (const Use& use : after.uses(change.added[i])) {
      if (use.node < 0) continue;
      if (!is_added(use.node)) {
        ceilings[i] = std::min(ceilings[i], position(use.node));
        continue;
      }
      const auto reader = static_cast<size_t>(
          std::lower_bound(change.added.begin(), change.added.end(), use.node) - change.added.begin());
      if (reader <= i) return false;
      ceilings[i] = std::min(ceilings[i], ceilings[reader]);
    }
  }
  for (size_t i = 0; i < change.added.size(); ++i) {
    double floor = -1;
    for (const Value& input : after.node(change.added[i]).inputs) {
      if (input.present()) floor = std::max(floor, position(input.node));
    }
    if (ceilings[i] == kNoReader) {
      positions_.set(at(change.added[i]), floor + 1);
      continue;
    }
    const double left = static_cast<double>(change.added.size() - i) + 1;
    const double gap = (ceilings[i] - floor) / left;
    if (gap <= kMinGap * (1 + floor)) return false;
    positions_.set(at(change.added[i]), floor + gap);
  }
  return std::all_of(change.changed.begin(), change.changed.end(), [&](NodeId id) {
    const auto& inputs = after.node(id).inputs;
    return std::all_of(inputs.begin(), inputs.end(), [&](const Value& input) {
      return !input.present() || position(input.node) < position(id);
    });
  });
}

bool TopologicalOrder::depends_on(const Graph& graph, Value value, const std::vector<NodeId>& nodes) const {
  if (!value.present() || nodes.empty()) return false;
  double first = kNoReader;
  for (const NodeId id : nodes) first = std::min(first, position(id));
  // What comes before all of the nodes cannot depend on them.
  std::vector<NodeId> stack;
  std::unordered_set<NodeId> seen;
  const auto visit = [&](NodeId id) {
    if (position(id) >= first && seen.insert(id).second) stack.push_back(id);
  };
  visit(value.node);
  while (!stack.empty()) {
    const NodeId id = stack.back();
    stack.pop_back();
    if (std::find(nodes.begin(), nodes.end(), id) != nodes.end()) return true;
    for (const Value& input : graph.node(id).inputs) {
      if (input.present()) visit(input.node);
    }
  }
  return false;
}

}  // namespace rlopt
