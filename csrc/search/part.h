// Extracts parts of a graph as separate graphs.
#pragma once

#include <vector>

#include "core/graph.h"

namespace rlopt {

/// Consecutive operators as a graph. Values read from outside become inputs, or weights if they depend only
/// on weights; values read outside become outputs.
struct Part {
  Graph graph;
  std::vector<NodeId> origins;  // by id in `graph`: the node in the whole graph
};

/// The operators of a graph in topological order, in groups.
struct Cut {
  std::vector<NodeId> order;
  std::vector<size_t> borders;  // starts of the groups, and the end of the last one
};

/// Groups of `size` operators, give or take half: cut where the fewest values cross.
Cut cut(const Graph& graph, size_t size);

/// The operators between two positions of the order as a graph.
Part part_of(const Graph& graph, const Cut& cut, size_t begin, size_t end);

}  // namespace rlopt
