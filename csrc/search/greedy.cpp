// The greedy search.
#include <algorithm>
#include <unordered_set>

#include "search/tree.h"

namespace rlopt {

namespace {

constexpr double kMinSaving = 1e-6;           // microseconds; less is rounding
constexpr double kNormalFormTolerance = 0.5;  // cost allowed for bringing one node to normal form

/// Families open in waves. Those that expose structure come first; those that hide it (a fused epilogue hides
/// a low-rank pair or a sum of convolutions from the substitutions that would remove it) come last, together
/// with families that are in no wave here.
const std::vector<std::vector<std::string>> kWaves{{"normalise"},
                                                   {"clean", "recognise", "fold", "convolution", "algebra"},
                                                   {"merge", "movement", "activation"},
                                                   {"epilogue", "hoist"}};
constexpr int kNormalForm = 0;

int wave_of(const std::string& family) {
  const int hiding = static_cast<int>(kWaves.size()) - 1;
  for (int wave = 0; wave < hiding; ++wave) {
    const auto& families = kWaves[at(wave)];
    if (std::find(families.begin(), families.end(), family) != families.end()) return wave;
  }
  return hiding;
}

class Greedy {
 public:
  Greedy(SearchTree& tree, int start, double chains_until)
      : tree_(tree), at_(tree, start), chains_until_(chains_until) {
    for (const Substitution& each : tree.library().substitutions()) waves_.push_back(wave_of(each.family));
  }

  /// Before each wave the graph is normalised; within a wave, cost-reducing steps are taken until none is
  /// left. The last pass has no wave of its own: it normalises what the hiding wave has left.
  int run() {
    for (int wave = kNormalForm + 1; wave <= static_cast<int>(kWaves.size()) && !tree_.out_of_budget();
         ++wave) {
      do {
        while (sweep(kNormalForm, kNormalFormTolerance) && !tree_.out_of_budget()) {
        }
      } while ((sweep(wave, -kMinSaving) || (has_time_for_chains() && take_chains(wave))) &&
               !tree_.out_of_budget());
    }
    return at_.node();
  }

 private:
  struct Saving {
    double delta_us;
    MatchPtr match;
  };

  /// The remaining waves are then opened without chains; a plan that skips them would be useless.
  bool has_time_for_chains() {
    if (chains_until_ == 0 || tree_.out_of_budget()) return false;
    if (tree_.fraction_used() < chains_until_) return true;
    tree_.note_cut();
    return false;
  }

  bool is_open(int wave, int substitution) const { return waves_[at(substitution)] <= wave; }

  /// Lists the candidates of a wave and of earlier ones once and takes those that cost at most `tolerance`
  /// more, largest saving first, if they are unchanged since. True if any was taken.
  bool sweep(int wave, double tolerance) {
    at_.expand();
    std::vector<Saving> savings;
    at_.state().for_each_candidate([&](const Candidate& candidate) {
      const double delta_us = candidate.evaluation().delta.time_us;
      if (delta_us > tolerance || !is_open(wave, candidate.substitution)) return;
      savings.push_back({delta_us, candidate.located->match});
    });
    std::stable_sort(savings.begin(), savings.end(),
                     [](const Saving& a, const Saving& b) { return a.delta_us < b.delta_us; });
    std::unordered_set<NodeId> stale;
    bool taken = false;
    for (const Saving& saving : savings) {
      if (tree_.out_of_budget()) break;
      taken = take(*saving.match, tolerance, stale) || taken;
    }
    return taken;
  }

  /// Takes a listed match if it still exists at a cost of at most `tolerance`.
  bool take(const Match& listed, double tolerance, std::unordered_set<NodeId>& stale) {
    const auto is_stale = [&](NodeId id) { return stale.contains(id); };
    if (std::any_of(listed.nodes.begin(), listed.nodes.end(), is_stale)) return false;
    if (!tree_.has_room(at_.node())) return false;
    const auto location = at_.state().matches().of(listed.substitution).find_nodes(listed.nodes);
    if (!location) return false;
    const Step step{listed.substitution, static_cast<int>(*location)};
    const Evaluation* evaluation = at_.state().evaluate(step.substitution, step.location);
    if (evaluation == nullptr || !evaluation->is_legal || evaluation->delta.time_us > tolerance) return false;
    stale.insert(evaluation->edits.begin(), evaluation->edits.end());
    return at_.step(step);
  }

  /// A short sequence of adjacent steps from the current graph.
  struct Chain {
    RewriteState state;
    std::vector<Step> steps;
    std::vector<NodeId> edited;  // nodes of the current graph touched by the steps
  };

  /// Tries every step that does not reduce the cost as the start of a chain. True if any chain reduced it and
  /// was taken.
  bool take_chains(int wave) {
    at_.expand();
    std::vector<Saving> firsts;
    at_.state().for_each_candidate([&](const Candidate& candidate) {
      if (!is_open(wave, candidate.substitution)) return;
      firsts.push_back({candidate.evaluation().delta.time_us, candidate.located->match});
    });
    std::stable_sort(firsts.begin(), firsts.end(),
                     [](const Saving& a, const Saving& b) { return a.delta_us < b.delta_us; });
    bool taken = false;
    for (const Saving& first : firsts) {
      if (!has_time_for_chains()) break;
      const Match& match = *first.match;
      const auto location = at_.state().matches().of(match.substitution).find(match);
      if (!location) continue;
      const std::vector<Step> steps = find_chain({match.substitution, static_cast<int>(*location)}, wave);
      if (steps.empty() || !tree_.has_room(at_.node(), kMaxChain)) continue;
      for (const Step& step : steps) taken = at_.step(step) || taken;
    }
    return taken;
  }

  /// Beam search over chains that begin with a step. Empty if none of them reduces the cost.
  std::vector<Step> find_chain(Step first, int wave) {
    struct Next {
      size_t from;
      Step step;
      double cost_us;
      uint64_t hash;
    };
    const double limit_us = at_.state().cost_us() - kMinSaving;
    const NodeId first_new = at_.state().graph().end_id();
    std::vector<Chain> open;
    if (!extend(open, {at_.state(), {}, {}}, first)) return {};
    for (int length = 2; length <= kMaxChain && !open.empty() && has_time_for_chains(); ++length) {
      std::vector<Next> next;
      for (size_t i = 0; i < open.size(); ++i) {
        const int64_t before = open[i].state.num_evaluations();
        open[i].state.evaluate();
        tree_.count_expansion(open[i].state.num_evaluations() - before);
        open[i].state.for_each_candidate([&](const Candidate& candidate) {
          const auto meets = [&](NodeId id) {
            return id >= first_new ||
                   std::find(open[i].edited.begin(), open[i].edited.end(), id) != open[i].edited.end();
          };
          const std::vector<NodeId>& nodes = candidate.match().nodes;
          if (!is_open(wave, candidate.substitution) || std::none_of(nodes.begin(), nodes.end(), meets))
            return;
          next.push_back({i,
                          {candidate.substitution, candidate.location},
                          open[i].state.cost_us() + candidate.evaluation().delta.time_us,
                          open[i].state.hash() + candidate.evaluation().hash_delta});
        });
      }
      std::stable_sort(next.begin(), next.end(),
                       [](const Next& a, const Next& b) { return a.cost_us < b.cost_us; });
      if (!next.empty() && next.front().cost_us < limit_us) {
        std::vector<Step> steps = open[next.front().from].steps;
        steps.push_back(next.front().step);
        return steps;
      }
      std::vector<Chain> longer;
      std::unordered_set<uint64_t> seen{at_.state().hash()};
      for (const Next& each : next) {
        if (longer.size() >= kChainWidth) break;
        if (seen.insert(each.hash).second) extend(longer, open[each.from], each.step);
      }
      open = std::move(longer);
    }
    return {};
  }

  static bool extend(std::vector<Chain>& chains, Chain chain, Step step) {
    const Evaluation* evaluation = chain.state.evaluate(step.substitution, step.location);
    if (evaluation == nullptr || !evaluation->is_legal) return false;
    chain.edited.insert(chain.edited.end(), evaluation->edits.begin(), evaluation->edits.end());
    if (!chain.state.step(step.substitution, step.location)) return false;
    chain.steps.push_back(step);
    chains.push_back(std::move(chain));
    return true;
  }

  static constexpr int kMaxChain = 5;
  static constexpr size_t kChainWidth = 3;

  SearchTree& tree_;
  Follower at_;
  double chains_until_;     // as a fraction of the budget
  std::vector<int> waves_;  // by substitution
};

}  // namespace

int search_greedily(SearchTree& tree, int start, double chains_until) {
  return Greedy(tree, start, chains_until).run();
}

}  // namespace rlopt
