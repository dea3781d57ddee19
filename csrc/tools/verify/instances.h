// The checker's instances, for callers that reason about them instead of evaluating them.
#pragma once

#include <vector>

#include "match/match.h"

namespace rlopt {

struct DrawnInstance {
  Graph graph;
  Match match;  // a match that apply does not refuse
};

/// Up to `count` distinct instances on which the substitution fires, drawn as in `verify`. The match's
/// attributes belong to the graph's nodes.
std::vector<DrawnInstance> draw_instances(const Library& library, int substitution, int count, uint64_t seed);

}  // namespace rlopt
