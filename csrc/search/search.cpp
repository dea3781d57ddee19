#include "search/search.h"

#include <algorithm>

#include "search/tree.h"

namespace rlopt {

namespace {

constexpr double kFirstTemperature = 3e-3;  // relative to the cost at the start

/// All searches in turns of growing length, each from the start and from the best graph that any has found.
void unite(SearchTree& tree) {
  search_greedily(tree, SearchTree::kRoot);
  search_greedily(tree, SearchTree::kRoot, true);
  const double budget_ms = tree.options().budget_ms;
  int width = tree.options().beam_width;
  uint64_t seed = tree.options().seed;
  for (double slice_ms = budget_ms / 80; !tree.is_out_for_good(); slice_ms *= 1.6, width *= 2) {
    const auto turn = [&](const auto& search) {
      tree.set_slice(slice_ms);
      const int before = tree.best();
      if (!tree.out_of_budget()) search();
      if (tree.best() == before) return;
      tree.set_slice(slice_ms);
      search_greedily(tree, tree.best(), true);
    };
    const double part = slice_ms / budget_ms;
    for (const double heat : {1.0, 8.0}) {
      turn([&] {
        search_annealing(tree, SearchTree::kRoot, ++seed, heat * kFirstTemperature,
                         tree.fraction_used() + part);
      });
      turn([&] {
        search_annealing(tree, tree.best(), ++seed, heat * kFirstTemperature, tree.fraction_used() + part);
      });
    }
    turn([&] { search_beam(tree, SearchTree::kRoot, width); });
    turn([&] { search_beam(tree, tree.best(), width); });
    for (const double alpha : {1.02, 1.05, 1.1}) {
      turn([&] { search_backtracking(tree, {SearchTree::kRoot, tree.best()}, alpha); });
    }
    if (tree.options().budget_steps > 0 && slice_ms > budget_ms) break;
  }
}

void run(SearchTree& tree) {
  const SearchOptions& options = tree.options();
  const std::string& name = options.searcher;
  if (name == "greedy") {
    search_greedily(tree, SearchTree::kRoot);
  } else if (name == "beam") {
    search_beam(tree, SearchTree::kRoot, options.beam_width);
  } else if (name == "taso") {
    search_backtracking(tree, {SearchTree::kRoot}, options.alpha);
  } else if (name == "annealing") {
    search_annealing(tree, SearchTree::kRoot, options.seed, kFirstTemperature, 1.0);
  } else if (name == "random") {
    search_random(tree);
  } else if (name == "best_known") {
    unite(tree);
  } else if (name != "none") {
    throw Error("unknown searcher '" + name +
                "'; expected none, greedy, beam, taso, annealing, random or best_known");
  }
}

}  // namespace

SearchResult search(const Graph& graph, const Library& library, const CostModel& cost,
                    const SearchOptions& options, const std::function<bool()>& interrupted) {
  SearchTree tree(graph, library, cost, options, interrupted);
  if (!tree.out_of_budget()) run(tree);
  return tree.result();
}

}  // namespace rlopt
