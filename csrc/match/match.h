// Finding substitutions in a graph.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/order.h"
#include "library/library.h"

namespace rlopt {

/// A match of a substitution. Valid for the graph it was found in (its attributes belong to that graph's
/// nodes), and for later graphs in which all its nodes survive unchanged.
struct Match {
  int substitution = -1;  // index in the library
  std::vector<NodeId>
      nodes;  // matched nodes, line by line; for a line with a family, all members in sequence
  Binding binding;
  int num_members = 0;  // of the family; 0 without one
};

/// Lazily built look-up tables for matching in a graph.
class GraphIndex {
 public:
  /// `order`, if given, must be this graph's.
  explicit GraphIndex(const Graph& graph, const TopologicalOrder* order = nullptr)
      : graph_(graph), order_(order) {}
  /// Ascending ids of live nodes.
  const NodeId* begin(Op op) const { return table().ids.data() + table().first[at(op)]; }
  const NodeId* end(Op op) const { return table().ids.data() + table().first[static_cast<size_t>(op) + 1]; }
  int count(Op op) const { return static_cast<int>(end(op) - begin(op)); }
  /// Whether `value` is, or depends on, an output of one of the nodes.
  bool depends_on(Value value, const std::vector<NodeId>& nodes) const;
  /// False if the node lacks a neighbour that the line requires.
  bool may_be(const PatternLine& line, NodeId id) const;

 private:
  struct Table {
    std::vector<NodeId> ids;
    std::vector<size_t> first;
  };
  const Table& table() const;

  const Graph& graph_;
  mutable const TopologicalOrder* order_;
  mutable std::optional<TopologicalOrder> own_order_;
  mutable Table table_;
  mutable std::unordered_map<NodeId, Surroundings> surroundings_;
};

/// All matches of one substitution, in canonical order: by the ids of the matched nodes, then by bindings.
std::vector<Match> find_matches(const Graph& graph, const Library& library, int substitution);
std::vector<Match> find_matches(const Graph& graph, const GraphIndex& index, const Library& library,
                                int substitution);
/// Matches of all substitutions, ordered by substitution, then location.
std::vector<Match> find_all_matches(const Graph& graph, const Library& library);
/// Removes symmetric images and duplicates, and sorts.
std::vector<Match> in_canonical_order(std::vector<Match> matches, const CompiledPattern& pattern);

/// How far the matcher got from one start: for `explain`.
struct MatchProgress {
  int num_lines = 0;    // lines bound at the furthest point
  std::string failure;  // what failed there
};
/// One line for each node at which the substitution nearly matched: how far it got and what failed.
std::string explain(const Graph& graph, const Library& library, int substitution);

}  // namespace rlopt
