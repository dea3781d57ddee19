// From a node that one line of a pattern stands for to those that another may stand for.
#pragma once

#include <vector>

#include "core/graph.h"
#include "library/pattern.h"

namespace rlopt {

/// Nodes that the last line of a path may stand for when the first stands for `start`.
std::vector<NodeId> follow(const Graph& graph, const CompiledPattern& pattern, const std::vector<int>& path,
                           NodeId start);

}  // namespace rlopt
