// A topological order that follows the edits of a graph.
#pragma once

#include <vector>

#include "core/graph.h"

namespace rlopt {

/// Which nodes a step made, took away or touched. Ids ascending, without repeats.
struct Change {
  std::vector<NodeId> added;     // new and alive
  std::vector<NodeId> removed;   // died
  std::vector<NodeId> changed;   // survivors with other inputs or derived facts
  std::vector<NodeId> reread;    // survivors that gained or lost a reader
  bool moves_dependence = true;  // some survivor may depend on other survivors than before
};

/// The change between a graph and one made from it by edits, found by looking at all nodes.
Change compare(const Graph& before, const Graph& after);

/// Positions of nodes: what a node reads has a smaller one. Copies share what they have in common.
class TopologicalOrder {
 public:
  TopologicalOrder() = default;
  explicit TopologicalOrder(const Graph& graph) { number(graph); }

  double position(NodeId id) const { return positions_[static_cast<size_t>(id)]; }
  /// Follows a step: new nodes go between what they read and what reads them, and nodes between the ends of
  /// an edge that points backwards change places. All are numbered anew only where there is no room.
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
