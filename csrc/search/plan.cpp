#include "search/plan.h"

#include "match/set.h"

namespace rlopt {

Graph replay(const Graph& graph, const Library& library, const std::vector<Step>& steps) {
  if (steps.empty()) return graph;
  // Update matches step by step: finding them again would be slow for plans of thousands of steps.
  MatchSet matches(graph, library);
  for (size_t i = 0; i < steps.size(); ++i) {
    const auto fail = [&](const std::string& reason) {
      const auto& name = library.substitutions()[at(steps[i].substitution)].name;
      throw Error("step " + std::to_string(i) + " (" + name + ", location " +
                  std::to_string(steps[i].location) + ") cannot be replayed: " + reason);
    };
    const MatchList& found = matches.of(steps[i].substitution);
    if (steps[i].location < 0 || static_cast<size_t>(steps[i].location) >= found.size()) {
      fail("there are " + std::to_string(found.size()) + " matches");
    }
    const MatchPtr match = found[at(steps[i].location)].match;
    std::string refusal;
    if (!matches.step(*match, library, &refusal)) fail(refusal);
  }
  return matches.graph();
}

}  // namespace rlopt
