// From a node that matches one pattern line to nodes that may match another.
#pragma once

#include <vector>

#include "core/graph.h"
#include "library/pattern.h"

namespace rlopt {

/// Nodes that may match the last line of a path if `start` matches the first.
std::vector<NodeId> follow(const Graph& graph, const CompiledPattern& pattern, const std::vector<int>& path,
                           NodeId start);

}  // namespace rlopt
