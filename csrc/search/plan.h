// Plans: steps that can be replayed.
#pragma once

#include <vector>

#include "match/apply.h"

namespace rlopt {

struct Step {
  int substitution = -1;
  int location = 0;  // index in find_matches(graph before the step, substitution)
  auto operator<=>(const Step&) const = default;
};

/// Replays steps; throws Error with the step that no longer applies.
Graph replay(const Graph& graph, const Library& library, const std::vector<Step>& steps);

}  // namespace rlopt
