// State of a search or an episode: a graph with its matches, prices and candidates.
#pragma once

#include <memory>
#include <vector>

#include "cost/cost.h"
#include "match/apply.h"
#include "match/set.h"

namespace rlopt {

/// The effect of applying a match. Valid until one of the watched nodes changes, or an expression over a
/// weight that it would add too is added or removed.
struct Evaluation {
  bool is_legal = false;
  NodeMetrics delta;                  // metrics after minus metrics before
  uint64_t hash_delta = 0;            // the same for Graph::state_hash
  uint64_t class_hash = 0;            // equal for indistinguishable candidates: see symmetry_class
  int num_added = 0;                  // operators that run
  int num_removed = 0;                //
  std::vector<NodeId> edits;          // survivors whose inputs or flags change, and removed nodes
  std::vector<NodeId> rereads;        // nodes that gain or lose readers, and removed nodes
  std::vector<NodeId> watched;        // a change of one of these nodes makes the evaluation stale,
  std::vector<NodeId> watched_reads;  // or of the readers of one of these
};

struct Candidate {
  int substitution = -1;
  int location = 0;
  const Located* located = nullptr;  // valid until the next step
  const Match& match() const { return *located->match; }
  const Evaluation& evaluation() const { return *located->evaluation; }
};

/// A graph, its matches, the price of every node, and the effect of every match. Copies are cheap; the cost
/// of a step depends on its neighbourhood. Not thread-safe, but two copies may be used by two threads.
class RewriteState {
 public:
  /// `library` and `cost` must outlive the state and its copies. `exact_only`: bit-exact substitutions only.
  RewriteState(Graph graph, const Library& library, const CostModel& cost, bool exact_only = false);

  const Graph& graph() const { return matches_.graph(); }
  const MatchSet& matches() const { return matches_; }
  const NodeMetrics& metrics() const { return total_; }
  double cost_us() const { return total_.time_us; }
  const NodeMetrics& price(NodeId id) const { return prices_[at(id)]; }
  uint64_t hash() const { return graph().state_hash(); }
  bool is_allowed(int substitution) const { return is_allowed_[at(substitution)]; }

  /// Applies a match and updates everything except evaluations. False, without any change, if it is refused;
  /// IndexError if there is no such match.
  bool step(int substitution, int location);
  /// Evaluates new and stale matches; `poll`, called now and then, ends it early by returning true.
  void evaluate();
  template <class Poll>
  void evaluate(const Poll& poll);
  /// The same for one match; null if it is not allowed.
  const Evaluation* evaluate(int substitution, int location);
  /// Evaluations so far, including those of the states this one was copied from.
  int64_t num_evaluations() const { return num_evaluations_; }

  /// The legal candidates in canonical order; call after `evaluate`.
  std::vector<Candidate> candidates() const;
  /// Calls visit(Candidate) for each of them.
  template <class Visit>
  void for_each_candidate(const Visit& visit) const {
    for (int i = 0; i < static_cast<int>(is_allowed_.size()); ++i) {
      if (!is_allowed(i)) continue;
      int location = 0;
      matches_.of(i).for_each([&](const Located& located) {
        if (located.evaluation != nullptr && located.evaluation->is_legal) visit({i, location, &located});
        ++location;
      });
    }
  }

 private:
  using Watchers = SharedVector<std::shared_ptr<const std::vector<MatchPtr>>>;

  void update_prices(const Graph& before, const Change& change);
  void evaluate_match(const MatchPtr& match);
  void invalidate(Watchers& watchers, const std::vector<NodeId>& ids);
  static void watch(Watchers& watchers, const std::vector<NodeId>& ids, const MatchPtr& match);

  const Library* library_;
  const CostModel* cost_;
  MatchSet matches_;
  SharedVector<NodeMetrics> prices_;
  NodeMetrics total_;
  Watchers watchers_;
  Watchers read_watchers_;
  Watchers expression_watchers_;  // by weight: candidates that would add an expression over it
  std::vector<bool> is_allowed_;
  std::vector<MatchPtr> pending_;
  int64_t num_evaluations_ = 0;
};

template <class Poll>
void RewriteState::evaluate(const Poll& poll) {
  std::vector<MatchPtr> todo = std::exchange(pending_, {});
  for (size_t i = 0; i < todo.size(); ++i) {
    if (i % 16 == 15 && poll()) {
      pending_.assign(todo.begin() + static_cast<long>(i), todo.end());
      return;
    }
    evaluate_match(todo[i]);
  }
}

inline void RewriteState::evaluate() {
  evaluate([] { return false; });
}

/// A subset of equal candidates that do not influence each other, so that their savings add up; `alike` holds
/// candidates of one class in canonical order. Their hash_delta need not add up: two may add the same
/// expression over weights, which costs nothing.
std::vector<Candidate> independent(const std::vector<Candidate>& alike);

}  // namespace rlopt
