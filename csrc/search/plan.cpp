#include "search/plan.h"

namespace rlopt {

Graph replay(const Graph& graph, const Library& library, const std::vector<Step>& steps) {
  Graph current = graph;
  for (size_t i = 0; i < steps.size(); ++i) {
    const auto fail = [&](const std::string& reason) {
      const auto& name = library.substitutions()[static_cast<size_t>(steps[i].substitution)].name;
      throw Error("step " + std::to_string(i) + " (" + name + ", location " +
                  std::to_string(steps[i].location) + ") cannot be replayed: " + reason);
    };
    const std::vector<Match> matches = find_matches(current, library, steps[i].substitution);
    if (steps[i].location < 0 || steps[i].location >= static_cast<int>(matches.size())) {
      fail("there are " + std::to_string(matches.size()) + " matches");
    }
    Applied applied = apply_match(current, library, matches[static_cast<size_t>(steps[i].location)]);
    if (!applied.graph) fail(applied.refusal);
    current = std::move(*applied.graph);
  }
  return current;
}

}  // namespace rlopt
