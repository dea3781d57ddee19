// Applying matches to a graph.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "match/match.h"

namespace rlopt {

/// The new graph, or why the match was not applied.
struct Applied {
  std::optional<Graph> graph;
  std::string refusal;                              // empty when applied
  Change change;                                    // of the nodes
  std::vector<std::pair<Value, Value>> redirected;  // outputs: what was there, what is there now
};

/// Builds the replacement, redirects the outputs, removes what died. Values inside the pattern that are read
/// elsewhere stay computed, so the result is right in any context. Refuses: type of an output would change, a
/// cycle would close, inference of the replacement fails, an attribute cannot be computed.
/// `order`, where given, must be of the graph, and spares looking for cycles where none can be.
/// `change.moves_dependence` is left at true: see below.
Applied apply_match(const Graph& graph, const Library& library, const Match& match,
                    const TopologicalOrder* order = nullptr);

/// Whether a step made some survivor depend on other survivors than before, through its outputs.
bool moves_dependence(const Graph& before, const Match& match, const Applied& applied);

}  // namespace rlopt
