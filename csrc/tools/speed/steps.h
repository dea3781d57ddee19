// Times the steps of a rewriting state.
#pragma once

#include <vector>

#include "search/state.h"

namespace rlopt {

struct StepTimes {
  double first_match_us = 0;       // listing all matches of the graph
  double first_evaluation_us = 0;  // evaluating all of them once
  std::vector<double> steps_us;    // for each step: apply, match, price and evaluate
  int64_t num_evaluations = 0;     // in the steps
};

/// Takes random legal steps from the graph, restarting if almost none are left; fewer than `num_steps`,
/// possibly none, only if the graph has no legal step.
StepTimes time_steps(const Graph& graph, const Library& library, const CostModel& cost, int num_steps,
                     uint64_t seed);

}  // namespace rlopt
