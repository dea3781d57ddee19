// Searches that keep a set of open graphs: beam and backtracking.
#include <algorithm>
#include <queue>

#include "search/tree.h"

namespace rlopt {

void search_beam(SearchTree& tree, int start, int width) {
  struct Next {
    int parent;
    Offer offer;
  };
  std::vector<int> frontier{start};
  std::unordered_set<uint64_t> seen{tree.state(start)->hash()};
  while (!frontier.empty() && !tree.out_of_budget()) {
    std::vector<Next> next;
    for (const int node : frontier) {
      if (tree.out_of_budget()) break;
      if (!tree.has_room(node)) continue;
      for (const Offer& offer : tree.expand(node)) next.push_back({node, offer});
    }
    std::stable_sort(next.begin(), next.end(),
                     [](const Next& a, const Next& b) { return a.offer.cost_us < b.offer.cost_us; });
    frontier.clear();
    for (const Next& each : next) {
      if (static_cast<int>(frontier.size()) >= width) break;
      if (!seen.insert(each.offer.hash).second) continue;
      frontier.push_back(tree.add(each.parent, each.offer.step, each.offer.cost_us));
    }
  }
}

void search_backtracking(SearchTree& tree, const std::vector<int>& starts, double alpha) {
  using Entry = std::pair<double, int>;  // cost, node; of equal costs the older first
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
  std::unordered_set<uint64_t> seen;
  for (const int start : starts) {
    if (seen.insert(tree.state(start)->hash()).second) queue.emplace(tree.cost_us(start), start);
  }
  while (!queue.empty() && !tree.out_of_budget()) {
    const int node = queue.top().second;
    queue.pop();
    if (!tree.has_room(node)) continue;
    for (const Offer& offer : tree.expand(node)) {
      if (offer.cost_us >= alpha * tree.best_us() || !seen.insert(offer.hash).second) continue;
      queue.emplace(offer.cost_us, tree.add(node, offer.step, offer.cost_us));
    }
  }
}

}  // namespace rlopt
