// All matches of a graph, updated incrementally.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "match/list.h"

namespace rlopt {

/// The matches of every substitution in one graph. Copies share common parts; the cost of a step depends on
/// its neighbourhood, not on the size of the graph.
class MatchSet {
 public:
  MatchSet(Graph graph, const Library& library);
  /// Applies a match of this set and updates the set; returns the change. If it is refused nothing happens,
  /// and `refusal`, if given, is set to the reason.
  std::optional<Change> step(const Match& match, const Library& library, std::string* refusal = nullptr);
  /// Updates the set after a step. Afterwards it equals `MatchSet(next, library)`. `library` must not change.
  void update(Graph next, const Change& change, const Library& library);
  /// The set of a graph derived from this one by edits (surviving nodes keep their ids). Throws TypeError for
  /// another library.
  MatchSet after(Graph next, const Library& library) const;

  const Graph& graph() const { return graph_; }
  const TopologicalOrder& order() const { return order_; }
  /// In canonical order: the position is the location.
  const MatchList& of(int substitution) const { return lists_[at(substitution)]; }
  /// The match of a (substitution, location) from outside: IndexError if it does not exist.
  const Located& located(int substitution, int location) const;
  /// Throws TypeError unless the matches are those of this library.
  void require(const Library& library) const;
  /// Summed over all substitutions.
  size_t size() const { return size_; }
  /// Sets the evaluation of a match, or clears it (null). Returns the equal match of this set; null if it no
  /// longer exists.
  MatchPtr set_evaluation(const Match& match, std::shared_ptr<const Evaluation> evaluation) {
    return lists_[at(match.substitution)].set_evaluation(match, std::move(evaluation));
  }
  /// Matches added since the last call; some may be gone again.
  std::vector<MatchPtr> take_fresh() { return std::exchange(fresh_, {}); }

 private:
  using Key = std::vector<Value>;
  using Keys = std::vector<std::pair<int, Key>>;       // substitution, what its members share
  using Starts = std::vector<std::pair<int, NodeId>>;  // substitution, start of its plan

  struct Rematch;  // an update in progress

  /// Adds to the list of its substitution only; null if already there.
  MatchPtr add(Match match);
  void insert(Match match);
  void erase(const Match& match);
  /// The matches of a local family whose members share this key. They are searched among the readers in this
  /// graph: erase those of removed or changed nodes first.
  std::vector<MatchPtr> of_key(int substitution, const CompiledPattern& pattern, const Key& key) const;
  void match_singles(Rematch& rematch);
  void match_ordered(Rematch& rematch);
  void match_free(Rematch& rematch);

  Graph graph_;
  TopologicalOrder order_;
  std::vector<MatchList> lists_;
  SharedVector<std::shared_ptr<const std::vector<MatchPtr>>> at_node_;  // by id: the matches that contain it
  Keys conflicts_;  // unordered families that had to omit members
  std::vector<MatchPtr> fresh_;
  size_t size_ = 0;
  uint64_t library_hash_ = 0;
};

}  // namespace rlopt
