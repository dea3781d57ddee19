// Applying matches to a graph.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "match/match.h"

namespace rlopt {

/// The new graph, or the reason for a refusal.
struct Applied {
  std::optional<Graph> graph;
  std::string refusal;                              // empty if applied
  Change change;                                    // in terms of nodes
  std::vector<std::pair<Value, Value>> redirected;  // outputs: old value, new value
};

/// Builds the replacement, redirects the outputs and removes dead nodes. Values inside the pattern with other
/// readers are still computed, so the result is right in any context. Refuses if the type of an output would
/// change, a cycle would close, type inference of the replacement fails, or an attribute cannot be computed.
/// `order`, if given, must be the graph's; it avoids the search for cycles where none is possible.
/// `change.moves_dependence` stays true: see below.
Applied apply_match(const Graph& graph, const Library& library, const Match& match,
                    const TopologicalOrder* order = nullptr);

/// Whether a step made a survivor depend on other survivors than before, through its outputs.
bool moves_dependence(const Graph& before, const Match& match, const Applied& applied);

}  // namespace rlopt
