#include "match_set.h"

#include <algorithm>

namespace rlopt {

namespace {

size_t at(int index) { return static_cast<size_t>(index); }

bool is_same_node(const Graph& a, const Graph& b, NodeId id) {
  return a.alive(id) && b.alive(id) && &a.node(id) == &b.node(id);
}

/// What an edit did, seen from the nodes of both graphs.
struct Difference {
  std::vector<bool> is_changed;  // by id: new, gone, or with other inputs or another static flag
  std::vector<NodeId> seeds;     // nodes of the new graph that a new match must have one of
};

Difference compare(const Graph& before, const Graph& after) {
  Difference result;
  const NodeId end = std::max(before.end_id(), after.end_id());
  result.is_changed.resize(at(end), false);
  for (NodeId id = 0; id < end; ++id) {
    if ((!before.alive(id) && !after.alive(id)) || is_same_node(before, after, id)) continue;
    result.is_changed[at(id)] = true;
    if (!after.alive(id)) continue;
    result.seeds.push_back(id);
    // A condition may ask whether an input is static: its readers are as good as changed.
    for (const Use& use : after.uses(id)) {
      if (use.node >= 0) result.seeds.push_back(use.node);
    }
  }
  std::sort(result.seeds.begin(), result.seeds.end());
  result.seeds.erase(std::unique(result.seeds.begin(), result.seeds.end()), result.seeds.end());
  return result;
}

bool is_touched(const Match& match, const std::vector<bool>& is_changed) {
  const auto changed = [&](NodeId id) { return id >= 0 && is_changed[at(id)]; };
  return std::any_of(match.nodes.begin(), match.nodes.end(), changed) ||
         std::any_of(match.binding.tensors.begin(), match.binding.tensors.end(),
                     [&](const Value& value) { return changed(value.node); });
}

/// A family takes in all nodes around a tensor, and what reads a tensor may be anywhere: such lists are made
/// anew.
bool is_local(const CompiledPattern& pattern) {
  return pattern.mode == CompiledPattern::Mode::Single && !pattern.counts_uses;
}

}  // namespace

MatchSet::MatchSet(Graph graph, const Library& library) : graph_(std::move(graph)) {
  const GraphIndex index(graph_);
  for (int i = 0; i < static_cast<int>(library.substitutions().size()); ++i) {
    lists_.push_back(std::make_shared<const std::vector<Match>>(find_matches(graph_, index, library, i)));
  }
}

MatchSet MatchSet::after(Graph next, const Library& library) const {
  MatchSet result(std::move(next));
  const GraphIndex index(result.graph_);
  const Difference difference = compare(graph_, result.graph_);
  for (int i = 0; i < static_cast<int>(lists_.size()); ++i) {
    const List& old = lists_[at(i)];
    if (!is_local(library.pattern(i))) {
      auto found = find_matches(result.graph_, index, library, i);
      const bool is_empty = found.empty() && old->empty();
      result.lists_.push_back(is_empty ? old : std::make_shared<const std::vector<Match>>(std::move(found)));
      continue;
    }
    std::vector<Match> found = find_matches_at(result.graph_, index, library, i, difference.seeds);
    const auto touched = [&](const Match& match) { return is_touched(match, difference.is_changed); };
    if (found.empty() && std::none_of(old->begin(), old->end(), touched)) {
      result.lists_.push_back(old);
      continue;
    }
    std::vector<Match> kept;
    std::copy_if(old->begin(), old->end(), std::back_inserter(kept),
                 [&](const Match& match) { return !touched(match); });
    std::vector<Match> merged;
    std::set_union(std::make_move_iterator(kept.begin()), std::make_move_iterator(kept.end()),
                   std::make_move_iterator(found.begin()), std::make_move_iterator(found.end()),
                   std::back_inserter(merged), precedes);
    result.lists_.push_back(std::make_shared<const std::vector<Match>>(std::move(merged)));
  }
  return result;
}

size_t MatchSet::size() const {
  size_t count = 0;
  for (const List& list : lists_) count += list->size();
  return count;
}

}  // namespace rlopt
