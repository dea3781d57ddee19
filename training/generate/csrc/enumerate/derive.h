// Whether existing substitutions already lead from one graph to another.
#pragma once

#include <functional>
#include <vector>

#include "cost/cost.h"
#include "search/search.h"

namespace rlopt {

struct DeriveOptions {
  int max_steps = 1;
  int max_graphs = 400;  // number of graphs to expand
  // If set, only steps that do not raise the cost by this model; null: any steps.
  const CostModel* cost = nullptr;
};

/// Equal for graphs that differ only in the order of commutative operands, in how an axis is counted, or in
/// whether a default is spelled out.
uint64_t normalised_hash(const Graph& graph);

/// Steps from `before` to `after`, by breadth-first search; empty if none were found.
std::vector<Step> derive(const Graph& before, const Graph& after, const Library& library,
                         const DeriveOptions& options);

}  // namespace rlopt
