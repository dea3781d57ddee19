// Finding substitutions in a graph.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "pattern.h"

namespace rlopt {

/// Where a substitution fires. Valid for the graph it was found in (its attributes belong to that graph's
/// nodes), and for later graphs in which all its nodes live on unchanged.
struct Match {
  int substitution = -1;  // index in the library
  std::vector<NodeId>
      nodes;  // matched nodes, line by line; of a line with a family all members one after another
  Binding binding;
  int num_members = 0;  // of the family, 0 without one
};

/// A parsed library, compiled for matching. Copies share the patterns.
class Library {
 public:
  explicit Library(std::vector<Substitution> substitutions);
  const std::vector<Substitution>& substitutions() const { return substitutions_; }
  const CompiledPattern& pattern(int substitution) const {
    return (*patterns_)[static_cast<size_t>(substitution)];
  }
  /// -1 when unknown.
  int find(const std::string& name) const;
  uint64_t hash() const { return hash_; }

 private:
  std::vector<Substitution> substitutions_;
  std::shared_ptr<const std::vector<CompiledPattern>> patterns_;
  uint64_t hash_ = 0;
};

/// Live nodes by operator, and their topological positions; made once per graph.
class GraphIndex {
 public:
  explicit GraphIndex(const Graph& graph);
  /// Ascending ids.
  const NodeId* begin(Op op) const { return ids_.data() + first_[static_cast<size_t>(op)]; }
  const NodeId* end(Op op) const { return ids_.data() + first_[static_cast<size_t>(op) + 1]; }
  int count(Op op) const { return static_cast<int>(end(op) - begin(op)); }
  /// True when `value` is, or depends on, an output of one of the nodes.
  bool depends_on(Value value, const std::vector<NodeId>& nodes) const;

 private:
  const Graph& graph_;
  std::vector<NodeId> ids_;
  std::vector<size_t> first_;
  mutable std::vector<int> position_;  // made on first use: most graphs never need it
};

/// All matches of one substitution, in canonical order: by the ids of the matched nodes, then by what is
/// bound.
std::vector<Match> find_matches(const Graph& graph, const Library& library, int substitution);
std::vector<Match> find_matches(const Graph& graph, const GraphIndex& index, const Library& library,
                                int substitution);
/// Matches of all substitutions, ordered by substitution, then location.
std::vector<Match> find_all_matches(const Graph& graph, const Library& library);
/// Of a substitution without a family, the matches that have one of the nodes among theirs; canonical order.
std::vector<Match> find_matches_at(const Graph& graph, const GraphIndex& index, const Library& library,
                                   int substitution, const std::vector<NodeId>& nodes);

/// Canonical order, and equality, of matches of one substitution.
bool precedes(const Match& a, const Match& b);

/// How far a matcher came from one start: for `explain`.
struct MatchProgress {
  NodeId start = -1;
  int num_lines = 0;    // lines bound at the furthest point
  std::string failure;  // what failed there
};
/// One entry for each node at which the substitution could have started but did not match.
std::vector<MatchProgress> trace_matches(const Graph& graph, const Library& library, int substitution);

/// One line per node at which the substitution nearly matched: how far it came and what failed.
std::string explain(const Graph& graph, const Library& library, int substitution);

}  // namespace rlopt
