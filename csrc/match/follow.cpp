// From a node that matches one pattern line to nodes that may match another.
#include <algorithm>

#include "core/unique.h"
#include "match/backtracking.h"

namespace rlopt {

namespace {

constexpr int kMaxClimb = 70;  // maximum depth of nested Adds; families have at most kMaxMembers members

/// A node in a tree of Adds may belong to a sum whose root is above it.
void climb(const Graph& graph, const PatternLine& line, std::vector<NodeId>& ids) {
  for (size_t next = 0; next < ids.size() && next < static_cast<size_t>(kMaxClimb); ++next) {
    const NodeId id = ids[next];
    if (next > 0 && graph.uses(id).size() != 1) continue;
    for (const Use& use : graph.uses(id)) {
      if (use.node < 0 || !line.stands_for(graph.node(use.node).op)) continue;
      if (std::find(ids.begin(), ids.end(), use.node) == ids.end()) ids.push_back(use.node);
    }
  }
}

}  // namespace

std::vector<NodeId> follow(const Graph& graph, const CompiledPattern& pattern, const std::vector<int>& path,
                           NodeId start) {
  std::vector<NodeId> ids{start};
  if (pattern.lines[at(path[0])].is_sum) climb(graph, pattern.lines[at(path[0])], ids);
  for (size_t i = 1; i < path.size(); ++i) {
    const PatternLine &from = pattern.lines[at(path[i - 1])], &to = pattern.lines[at(path[i])];
    std::vector<NodeId> next;
    const auto add = [&](NodeId id) {
      if (id >= 0 && to.stands_for(graph.node(id).op)) next.push_back(id);
    };
    const auto shares = [](const std::vector<int>& a, const std::vector<int>& b) {
      return std::any_of(a.begin(), a.end(), [&](int slot) {
        return slot != Line::kOmitted && std::find(b.begin(), b.end(), slot) != b.end();
      });
    };
    for (const NodeId id : ids) {
      if (shares(from.outs, to.ins)) {
        for (const Use& use : graph.uses(id)) add(use.node);
      } else {
        const bool is_producer = shares(from.ins, to.outs);
        for (const Value& input : graph.node(id).inputs) {
          if (!input.present()) continue;
          if (is_producer) {
            add(input.node);
          } else {
            for (const Use& use : graph.uses(input.node)) add(use.node);
          }
        }
      }
    }
    sort_unique(next);
    if (to.is_sum) climb(graph, to, next);
    ids = std::move(next);
  }
  return ids;
}

}  // namespace rlopt
