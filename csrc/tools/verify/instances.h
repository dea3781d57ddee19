// The instances that the checker draws, for whoever wants to reason about them instead of evaluating them.
#pragma once

#include <vector>

#include "match/match.h"

namespace rlopt {

struct DrawnInstance {
  Graph graph;
  Match match;  // one that apply does not refuse
};

/// Up to `count` distinct instances on which the substitution fires, drawn as `verify` draws them. The
/// match's attributes belong to the graph's nodes.
std::vector<DrawnInstance> draw_instances(const Library& library, int substitution, int count, uint64_t seed);

}  // namespace rlopt
