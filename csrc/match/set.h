// All matches of a graph, kept up to date from step to step.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "match/list.h"

namespace rlopt {

/// The matches of every substitution in one graph. Copies share what they have in common; a step costs as
/// much as what lies around it, whatever the size of the graph.
class MatchSet {
 public:
  MatchSet(Graph graph, const Library& library);
  /// Applies a match of this set and follows the step: what changed. Where it is refused nothing happens, and
  /// `refusal`, where given, says why.
  std::optional<Change> step(const Match& match, const Library& library, std::string* refusal = nullptr);
  /// Follows a step. Afterwards equal to `MatchSet(next, library)`. `library` must be the one of before.
  void update(Graph next, const Change& change, const Library& library);
  /// The set of a graph that was made from this one by edits (ids of surviving nodes are the same). Throws
  /// TypeError for another library.
  MatchSet after(Graph next, const Library& library) const;

  const Graph& graph() const { return graph_; }
  const TopologicalOrder& order() const { return order_; }
  /// In canonical order: the position is the location.
  const MatchList& of(int substitution) const { return lists_[static_cast<size_t>(substitution)]; }
  /// The match of a (substitution, location) that comes from outside: IndexError where there is none.
  const Located& located(int substitution, int location) const;
  /// Throws TypeError unless the matches are those of this library.
  void require(const Library& library) const;
  /// Of all substitutions.
  size_t size() const { return size_; }
  /// Notes the evaluation of a match, or forgets it (null). The equal match of this set; null where there is
  /// none any more.
  MatchPtr set_evaluation(const Match& match, std::shared_ptr<const Evaluation> evaluation) {
    return lists_[static_cast<size_t>(match.substitution)].set_evaluation(match, std::move(evaluation));
  }
  /// Matches that came since the last call; some may have gone again.
  std::vector<MatchPtr> take_fresh() { return std::exchange(fresh_, {}); }

 private:
  using Key = std::vector<Value>;
  using Keys = std::vector<std::pair<int, Key>>;       // substitution, what the members share
  using Starts = std::vector<std::pair<int, NodeId>>;  // substitution, where its plan starts

  struct Rematch;  // one update in progress

  /// To the list of its substitution only; null where it is there already.
  MatchPtr add(Match match);
  void insert(Match match);
  void erase(const Match& match);
  /// The matches of a local family whose members share this. They are looked for among the readers in this
  /// graph: those of nodes that a step has removed or changed have to be erased before.
  std::vector<MatchPtr> of_key(int substitution, const CompiledPattern& pattern, const Key& key) const;
  void match_singles(Rematch& rematch);
  void match_ordered(Rematch& rematch);
  void match_free(Rematch& rematch);

  Graph graph_;
  TopologicalOrder order_;
  std::vector<MatchList> lists_;
  SharedVector<std::shared_ptr<const std::vector<MatchPtr>>> at_node_;  // by id: the matches it is part of
  Keys conflicts_;  // families without an order that had to leave members out
  std::vector<MatchPtr> fresh_;
  size_t size_ = 0;
  uint64_t library_hash_ = 0;
};

}  // namespace rlopt
