// Applying matches to a graph.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "match.h"

namespace rlopt {

/// The new graph, or why the match was not applied.
struct Applied {
  std::optional<Graph> graph;
  std::string refusal;          // empty when applied
  std::vector<NodeId> added;    // new node ids, those still alive
  std::vector<NodeId> removed;  // ids that died
  std::vector<NodeId>
      changed;  // surviving nodes whose inputs were redirected, or that became static or ceased to be
};

/// Builds the replacement, redirects the outputs, removes what died. Values inside the pattern that are read
/// elsewhere stay computed, so the result is right in any context. Refuses: type of an output would change, a
/// cycle would close, inference of the replacement fails, an attribute cannot be computed.
Applied apply_match(const Graph& graph, const Library& library, const Match& match);

}  // namespace rlopt
