#include "core/order.h"

#include <algorithm>
#include <limits>
#include <unordered_set>

namespace rlopt {

namespace {

constexpr double kNoReader = std::numeric_limits<double>::infinity();
constexpr double kMinGap = 1e-9;  // relative to the position: below it doubles run out of digits
constexpr double kBehind =
    0.375;  // offset from its inputs of a node whose reader precedes them, until they are reordered

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

/// False if there is no room between the old positions.
bool TopologicalOrder::place(const Graph& after, const Change& change) {
  // Added nodes have ascending ids along their edges, except those of a chain that reads a later one.
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
    const bool is_between = gap > 0;
    if (is_between && gap <= kMinGap * (1 + floor)) return false;
    positions_.set(at(change.added[i]), floor + (is_between ? gap : kBehind));
  }
  for (const std::vector<NodeId>* ids : {&change.added, &change.changed}) {
    for (const NodeId id : *ids) {
      for (const Value& input : after.node(id).inputs) {
        if (!input.present() || position(input.node) < position(id)) continue;
        if (!exchange(after, input.node, id)) return false;
      }
    }
  }
  return true;
}

/// Reorders only the nodes between the two ends of a backward edge (Pearce and Kelly 2006, A dynamic
/// topological sort algorithm for directed acyclic graphs). False if two of them share a position.
bool TopologicalOrder::exchange(const Graph& graph, NodeId producer, NodeId reader) {
  const double first = position(reader), last = position(producer);
  const auto collect = [&](NodeId start, const auto& for_each_next) {
    std::vector<NodeId> found{start};
    std::unordered_set<NodeId> seen{start};
    for (size_t i = 0; i < found.size(); ++i) {
      for_each_next(found[i], [&](NodeId id) {
        if (position(id) >= first && position(id) <= last && seen.insert(id).second) found.push_back(id);
      });
    }
    std::sort(found.begin(), found.end(), [&](NodeId a, NodeId b) { return position(a) < position(b); });
    return found;
  };
  std::vector<NodeId> ids = collect(producer, [&](NodeId id, const auto& visit) {
    for (const Value& input : graph.node(id).inputs) {
      if (input.present()) visit(input.node);
    }
  });
  const std::vector<NodeId> behind = collect(reader, [&](NodeId id, const auto& visit) {
    for (const Use& use : graph.uses(id)) {
      if (use.node >= 0) visit(use.node);
    }
  });
  ids.insert(ids.end(), behind.begin(), behind.end());
  std::vector<double> places;
  for (const NodeId id : ids) places.push_back(position(id));
  std::sort(places.begin(), places.end());
  if (std::adjacent_find(places.begin(), places.end()) != places.end()) return false;
  for (size_t i = 0; i < ids.size(); ++i) positions_.set(at(ids[i]), places[i]);
  return true;
}

bool TopologicalOrder::depends_on(const Graph& graph, Value value, const std::vector<NodeId>& nodes) const {
  if (!value.present() || nodes.empty()) return false;
  double first = kNoReader;
  for (const NodeId id : nodes) first = std::min(first, position(id));
  // Values before all of the nodes cannot depend on them.
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
