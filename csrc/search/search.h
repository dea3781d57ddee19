// Searches for a cheaper graph: each returns its steps, replayable through `apply_match`.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cost/cost.h"
#include "search/plan.h"

namespace rlopt {

struct SearchOptions {
  std::string searcher = "greedy";  // a name in `kSearchers` of search.cpp
  double budget_ms = 300;           // by OwnClock; 0: none
  int64_t budget_steps = 0;         // expansions; 0: unlimited
  double alpha = 1.05;              // taso: keep graphs below alpha * best
  int beam_width = 8;
  int max_length = 0;  // maximum steps of a plan; 0: as many as a graph of this size may need
  uint64_t seed = 0;
  bool exact_only = false;  // numerics="strict"
  int64_t patience = 0;     // iterated, each stage of parts: expansions without improvement; 0: unlimited
  std::vector<Step> first;  // iterated, parts: a plan to start from, instead of greedy with chains
};

/// The best cost after a number of expansions.
struct SearchProgress {
  int64_t expansions = 0;
  double seconds = 0;
  double cost_us = 0;
};

struct SearchResult {
  Graph graph;
  std::vector<Step> steps;
  std::vector<double> costs_us;  // cost after each step
  double cost_before_us = 0;
  double cost_after_us = 0;
  int64_t expansions = 0;  // graphs whose matches were listed
  int64_t candidates = 0;  // steps that were priced
  bool exhausted = true;   // false: a budget or the length limit ended the search
  double seconds = 0;
  std::vector<SearchProgress> progress;  // one entry for each improvement
};

/// Polls `interrupted`; true ends the search with the best plan so far (Ctrl-C).
SearchResult search(const Graph& graph, const Library& library, const CostModel& cost,
                    const SearchOptions& options, const std::function<bool()>& interrupted = {});

}  // namespace rlopt
