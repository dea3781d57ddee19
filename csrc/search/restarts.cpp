// Searches that repeat the greedy search from other graphs: restarts and iterated local search.
#include <algorithm>
#include <random>

#include "search/tree.h"

namespace rlopt {

namespace {

constexpr uint64_t kMaxWalk = 8;  // random steps before a restart
constexpr uint64_t kMaxKick = 4;  // random steps after a cut

/// Takes random steps from a node, fewer if none are left; returns the last node.
int walk_from(SearchTree& tree, int node, uint64_t count, std::mt19937_64& random) {
  Follower at(tree, node);
  for (uint64_t i = 0; i < count && !tree.out_of_budget() && tree.has_room(at.node()); ++i) {
    at.expand();
    const std::vector<Candidate> candidates = at.state().candidates();
    if (candidates.empty()) break;
    const Candidate& chosen = candidates[random() % candidates.size()];
    if (!at.step({chosen.substitution, chosen.location})) break;
  }
  return at.node();
}

}  // namespace

int follow_first(SearchTree& tree, int start) {
  Follower at(tree, start);
  for (const Step& step : tree.options().first) {
    if (!at.step(step)) throw Error("a step of the first plan does not apply");
  }
  return at.node();
}

void search_with_restarts(SearchTree& tree, int start) {
  std::mt19937_64 random(tree.options().seed);
  search_greedily(tree, start, kMostOfIt);
  while (!tree.out_of_budget()) {
    const int end = walk_from(tree, start, 1 + random() % kMaxWalk, random);
    if (end == start) return;  // no legal step
    search_greedily(tree, end, kAllOfIt);
  }
}

void search_iteratively(SearchTree& tree, int start) { iterate(tree, start, first_plan(tree, start)); }

int first_plan(SearchTree& tree, int start) {
  return tree.options().first.empty() ? search_greedily(tree, start, kMostOfIt) : follow_first(tree, start);
}

void iterate(SearchTree& tree, int start, int local) {
  std::mt19937_64 random(tree.options().seed);
  while (!tree.out_of_budget() && !tree.out_of_patience()) {
    // Few substitutions can be undone: cut the plan somewhere and continue another way.
    int cut = local;
    const int length = tree.depth(local) - tree.depth(start);
    const auto dropped = static_cast<int>(random() % (static_cast<uint64_t>(length) + 1));
    for (int i = 0; i < dropped; ++i) cut = tree.parent(cut);
    const int kicked = walk_from(tree, cut, 1 + random() % kMaxKick, random);
    if (kicked == start) return;
    const int end = search_greedily(tree, kicked, kAllOfIt);
    if (tree.cost_us(end) <= tree.cost_us(local)) local = end;
  }
}

}  // namespace rlopt
