// Whether the substitutions that are there already lead from one graph to another.
#pragma once

#include <functional>
#include <vector>

#include "cost/cost.h"
#include "search/search.h"

namespace rlopt {

struct DeriveOptions {
  int max_steps = 1;
  int max_graphs = 400;  // expanded
  // Only steps to graphs that cost no more than the one before, by this model; null: any steps.
  const CostModel* cost = nullptr;
};

/// Equal for graphs that differ in the order of commutative operands, in how an axis is counted or a default
/// spelled only.
uint64_t normalised_hash(const Graph& graph);

/// Steps from `before` to `after`, breadth first; empty when none were found.
std::vector<Step> derive(const Graph& before, const Graph& after, const Library& library,
                         const DeriveOptions& options);

}  // namespace rlopt
