// Simulated annealing: follows one graph at a time.
#include <algorithm>
#include <cmath>
#include <random>

#include "search/tree.h"

namespace rlopt {

namespace {

constexpr double kLastTemperature = 1e-5;  // relative to the cost at the start
constexpr double kGiveUp = 1.15;           // restart a walk from the best if it costs this much more

double uniform(std::mt19937_64& random) { return static_cast<double>(random() >> 11) * 0x1.0p-53; }

}  // namespace

void search_annealing(SearchTree& tree, int start, uint64_t seed, double first_temperature,
                      double end_fraction) {
  std::mt19937_64 random(seed);
  const double scale_us = tree.cost_us(SearchTree::kRoot), begin_fraction = tree.fraction_used();
  int local_best = start;
  Follower at(tree, start);
  while (!tree.out_of_budget()) {
    const double progress = std::min(
        1.0, (tree.fraction_used() - begin_fraction) / std::max(1e-9, end_fraction - begin_fraction));
    const double temperature_us =
        scale_us * first_temperature * std::pow(kLastTemperature / first_temperature, progress);
    at.expand();
    const std::vector<Candidate> candidates = at.state().candidates();
    const bool is_lost = at.state().cost_us() > kGiveUp * tree.cost_us(local_best);
    if (candidates.empty() || is_lost || !tree.has_room(at.node())) {
      if (candidates.empty() && at.node() == start && local_best == start) return;
      at.restart(random() % 4 == 0 || at.node() == local_best ? start : local_best);
      continue;
    }
    // Heat bath: candidates are drawn by their cost, so that no proposal is rejected.
    double least_us = 0;
    for (const Candidate& each : candidates) least_us = std::min(least_us, each.evaluation().delta.time_us);
    std::vector<double> sums;
    double sum = 0;
    for (const Candidate& each : candidates) {
      sum += std::exp(-(each.evaluation().delta.time_us - least_us) / temperature_us);
      sums.push_back(sum);
    }
    const double drawn = uniform(random) * sum;
    const auto index = static_cast<size_t>(std::lower_bound(sums.begin(), sums.end(), drawn) - sums.begin());
    const Candidate& chosen = candidates[std::min(index, candidates.size() - 1)];
    if (at.step({chosen.substitution, chosen.location}) &&
        tree.cost_us(at.node()) < tree.cost_us(local_best)) {
      local_best = at.node();
    }
  }
}

}  // namespace rlopt
