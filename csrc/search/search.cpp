#include "search/search.h"

#include <algorithm>

#include "search/tree.h"

namespace rlopt {

namespace {

constexpr double kFirstTemperature = 3e-3;  // relative to the cost at the start

/// Portfolio: runs all searches in rounds of growing length, each from the start and from the best graph so
/// far.
void unite(SearchTree& tree) {
  search_greedily(tree, SearchTree::kRoot);
  search_greedily(tree, SearchTree::kRoot, kAllOfIt);
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
      search_greedily(tree, tree.best(), kAllOfIt);
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

struct Searcher {
  const char* name;
  void (*run)(SearchTree&);
};

/// The searchers of the core by their names in `SearchOptions`.
constexpr Searcher kSearchers[] = {
    {"none", [](SearchTree&) {}},
    {"greedy", [](SearchTree& tree) { search_greedily(tree, SearchTree::kRoot); }},
    {"chains", [](SearchTree& tree) { search_greedily(tree, SearchTree::kRoot, kMostOfIt); }},
    {"restarts", [](SearchTree& tree) { search_with_restarts(tree, SearchTree::kRoot); }},
    {"iterated", [](SearchTree& tree) { search_iteratively(tree, SearchTree::kRoot); }},
    {"local", [](SearchTree& tree) { search_by_parts(tree, SearchTree::kRoot); }},
    {"beam", [](SearchTree& tree) { search_beam(tree, SearchTree::kRoot, tree.options().beam_width); }},
    {"taso", [](SearchTree& tree) { search_backtracking(tree, {SearchTree::kRoot}, tree.options().alpha); }},
    {"annealing",
     [](SearchTree& tree) {
       search_annealing(tree, SearchTree::kRoot, tree.options().seed, kFirstTemperature, 1.0);
     }},
    {"best_known", unite},
};

const Searcher& searcher_of(const std::string& name) {
  std::string names;
  for (const Searcher& each : kSearchers) {
    if (each.name == name) return each;
    names += (names.empty() ? "" : ", ") + std::string(each.name);
  }
  throw Error("unknown searcher '" + name + "'; expected one of " + names);
}

}  // namespace

SearchResult search(const Graph& graph, const Library& library, const CostModel& cost,
                    const SearchOptions& options, const std::function<bool()>& interrupted) {
  const Searcher& searcher = searcher_of(options.searcher);
  SearchTree tree(graph, library, cost, options, interrupted);
  if (!tree.out_of_budget()) searcher.run(tree);
  return tree.result();
}

}  // namespace rlopt
