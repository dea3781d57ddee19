// Parts of a graph as graphs of their own.
#pragma once

#include <vector>

#include "core/graph.h"

namespace rlopt {

/// Operators that stand together, as a graph. What they read from outside is an input, or a weight where it
/// depends on weights only; what is read outside is an output.
struct Part {
  Graph graph;
  std::vector<NodeId> origins;  // by id in `graph`: the node of the whole graph
};

/// The operators of a graph in topological order, in groups.
struct Cut {
  std::vector<NodeId> order;
  std::vector<size_t> borders;  // where groups begin, and the end of the last one
};

/// Groups of `size` operators, or half as many more or less: cut where the fewest values are read on the
/// other side.
Cut cut(const Graph& graph, size_t size);

/// The operators from one position of the order up to another as a graph.
Part part_of(const Graph& graph, const Cut& cut, size_t begin, size_t end);

}  // namespace rlopt
