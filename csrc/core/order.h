// A topological order that is updated incrementally as a graph is edited.
#pragma once

#include <vector>

#include "core/graph.h"

namespace rlopt {

/// The nodes that a step added, removed or changed. Ids ascending, without repeats.
struct Change {
  std::vector<NodeId> added;     // new and alive
  std::vector<NodeId> removed;   // died
  std::vector<NodeId> changed;   // survivors with other inputs or derived facts
  std::vector<NodeId> reread;    // survivors that gained or lost a reader
  bool moves_dependence = true;  // some survivor may depend on other survivors than before
};

/// The change between a graph and an edited version of it, found by comparing all nodes.
Change compare(const Graph& before, const Graph& after);

/// Positions of nodes; producers precede consumers. Copies share common parts.
class TopologicalOrder {
 public:
  TopologicalOrder() = default;
  explicit TopologicalOrder(const Graph& graph) { number(graph); }

  double position(NodeId id) const { return positions_[at(id)]; }
  /// Updates the order after a step: new nodes go between their producers and readers, and nodes between the
  /// ends of a backward edge are reordered. Renumbers everything only if there is no room.
  void update(const Graph& after, const Change& change);
  /// True when `value` is, or depends on, an output of one of the nodes.
  bool depends_on(const Graph& graph, Value value, const std::vector<NodeId>& nodes) const;

 private:
  void number(const Graph& graph);
  bool place(const Graph& after, const Change& change);
  bool exchange(const Graph& graph, NodeId producer, NodeId reader);

  SharedVector<double> positions_;
};

}  // namespace rlopt
