// The greedy search.
#include <algorithm>

#include "search_tree.h"

namespace rlopt {

namespace {

constexpr double kMinSaving = 1e-6;           // microseconds; below it is rounding
constexpr double kNormalFormTolerance = 0.5;  // what bringing one node to normal form may cost

using Families = std::vector<std::string>;

/// What exposes structure comes first (a fused epilogue hides a low-rank pair or a sum of convolutions from
/// the substitutions that would remove it), what hides it last.
const Families kNormalForm{"normalise"};
const Families kExposing{"normalise", "clean", "recognise", "fold", "convolution", "algebra"};
const Families kMerging{"normalise", "clean", "recognise", "fold",      "convolution",
                        "algebra",   "merge", "movement",  "activation"};

class Greedy {
 public:
  Greedy(SearchTree& tree, int start) : tree_(tree), at_(tree, start) {}

  /// Before each wave the graph is brought to normal form; within a wave, steps that save are taken until
  /// none does.
  int run() {
    for (const Families* wave : {&kExposing, &kMerging, static_cast<const Families*>(nullptr)}) {
      do {
        while (sweep(&kNormalForm, kNormalFormTolerance) && !tree_.out_of_budget()) {
        }
      } while (sweep(wave, -kMinSaving) && !tree_.out_of_budget());
    }
    return at_.node();
  }

 private:
  struct Saving {
    double delta_us;
    MatchPtr match;
  };

  bool is_in(const Families* families, int substitution) const {
    if (families == nullptr) return true;
    const auto& family = tree_.library().substitutions()[static_cast<size_t>(substitution)].family;
    return std::find(families->begin(), families->end(), family) != families->end();
  }

  /// Lists the candidates of some families (null: all) once and takes those that cost at most `tolerance`
  /// more, the largest saving first, while they are as they were listed. True if any was taken.
  bool sweep(const Families* families, double tolerance) {
    at_.expand();
    std::vector<Saving> savings;
    at_.state().for_each_candidate([&](const Candidate& candidate) {
      const double delta_us = candidate.evaluation().delta.time_us;
      if (delta_us > tolerance || !is_in(families, candidate.substitution)) return;
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

  /// Takes a listed match if it still stands there at a cost of at most `tolerance`.
  bool take(const Match& listed, double tolerance, std::unordered_set<NodeId>& stale) {
    const auto is_stale = [&](NodeId id) { return stale.contains(id); };
    if (std::any_of(listed.nodes.begin(), listed.nodes.end(), is_stale)) return false;
    if (tree_.depth(at_.node()) >= tree_.options().max_length) return false;
    const auto location = at_.state().matches().of(listed.substitution).find_nodes(listed.nodes);
    if (!location) return false;
    const Step step{listed.substitution, static_cast<int>(*location)};
    const Evaluation* evaluation = at_.state().evaluate(step.substitution, step.location);
    if (evaluation == nullptr || !evaluation->is_legal || evaluation->delta.time_us > tolerance) return false;
    stale.insert(evaluation->edits.begin(), evaluation->edits.end());
    return at_.step(step);
  }

  SearchTree& tree_;
  Follower at_;
};

}  // namespace

int search_greedily(SearchTree& tree, int start) { return Greedy(tree, start).run(); }

}  // namespace rlopt
