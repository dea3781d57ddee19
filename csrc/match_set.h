// All matches of a graph, kept up to date from step to step.
#pragma once

#include <memory>
#include <vector>

#include "match.h"

namespace rlopt {

/// The matches of every substitution in one graph. An immutable value: sets of neighbouring graphs share the
/// lists that the step between them left alone.
class MatchSet {
 public:
  MatchSet(Graph graph, const Library& library);
  /// The set of a graph that was made from this one by edits (ids of surviving nodes are the same); equal to
  /// `MatchSet(next, library)`, but only what lies around the edits is matched anew. `library` must be the
  /// one of before.
  MatchSet after(Graph next, const Library& library) const;

  const Graph& graph() const { return graph_; }
  /// In canonical order: the position is the location.
  const std::vector<Match>& of(int substitution) const { return *lists_[static_cast<size_t>(substitution)]; }
  /// Of all substitutions.
  size_t size() const;

 private:
  using List = std::shared_ptr<const std::vector<Match>>;

  explicit MatchSet(Graph graph) : graph_(std::move(graph)) {}

  Graph graph_;
  std::vector<List> lists_;
};

}  // namespace rlopt
