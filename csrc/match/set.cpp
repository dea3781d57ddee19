#include "match/set.h"

#include <algorithm>
#include <limits>

#include "core/unique.h"
#include "match/apply.h"
#include "match/backtracking.h"

namespace rlopt {

namespace {

/// The live ones among some nodes, and all their readers.
std::vector<NodeId> with_readers(const Graph& graph, const std::vector<std::vector<NodeId>>& parts) {
  std::vector<NodeId> all;
  for (const auto& part : parts) {
    for (const NodeId id : part) {
      if (!graph.alive(id)) continue;
      all.push_back(id);
      for (const Use& use : graph.uses(id)) {
        if (use.node >= 0) all.push_back(use.node);
      }
    }
  }
  sort_unique(all);
  return all;
}

/// The node that matches a line without a family.
NodeId node_of_line(const CompiledPattern& pattern, const Match& match, int line) {
  size_t position = 0;
  for (int i = 0; i < line; ++i) {
    position += pattern.lines[at(i)].kind == Line::Kind::PerMember ? at(match.num_members) : 1;
  }
  return match.nodes[position];
}

std::vector<Value> key_of(const CompiledPattern& pattern, const Match& match) {
  std::vector<Value> key;
  for (const int slot : pattern.shared_tensors) key.push_back(match.binding.tensors[at(slot)]);
  return key;
}

/// False if every input of the family precedes every output in topological order.
bool may_conflict(const Graph& graph, const TopologicalOrder& order, const CompiledPattern& pattern,
                  const Match& match) {
  double first = std::numeric_limits<double>::infinity();
  bool is_static = false;
  for (const int slot : pattern.starred_outputs) {
    for (const Value& value : match.binding.family_tensors[at(slot)]) {
      if (!graph.alive(value.node)) return true;
      first = std::min(first, order.position(value.node));
      is_static = is_static || graph.is_static(value);
    }
  }
  for (const int slot : pattern.starred_inputs) {
    for (const Value& value : match.binding.family_tensors[at(slot)]) {
      if (!graph.alive(value.node)) return true;
      // An expression over weights depends on no run-time node.
      if (graph.is_static(value) && !is_static) continue;
      if (order.position(value.node) >= first) return true;
    }
  }
  return false;
}

}  // namespace

struct MatchSet::Rematch {
  const Library& library;
  const Graph& before;
  const GraphIndex index;            // of the new graph
  std::vector<NodeId> seeds;         // live nodes; a new match must contain one of them
  std::vector<NodeId> wide_seeds;    // the same for patterns that count readers
  std::vector<NodeId> former_seeds;  // formerly live nodes; a lost match contains one of them
  Starts starts;
  Keys keys;
};

MatchSet::MatchSet(Graph graph, const Library& library)
    : graph_(std::move(graph)), order_(graph_), library_hash_(library.hash()) {
  const GraphIndex index(graph_, &order_);
  lists_.resize(library.substitutions().size());
  std::vector<std::vector<MatchPtr>> at_node(at(graph_.end_id()));
  for (int i = 0; i < static_cast<int>(lists_.size()); ++i) {
    Matcher matcher(graph_, index, library, i);
    for (Match& match : in_canonical_order(matcher.all(), library.pattern(i))) {
      const MatchPtr added = add(std::move(match));
      if (added == nullptr) continue;
      for (const NodeId id : added->nodes) at_node[at(id)].push_back(added);
    }
    for (Key& key : matcher.take_conflicts()) conflicts_.emplace_back(i, std::move(key));
  }
  for (std::vector<MatchPtr>& each : at_node) {
    at_node_.push_back(each.empty() ? nullptr : std::make_shared<std::vector<MatchPtr>>(std::move(each)));
  }
  sort_unique(conflicts_);
}

const Located& MatchSet::located(int substitution, int location) const {
  if (substitution < 0 || static_cast<size_t>(substitution) >= lists_.size()) {
    throw IndexError("there are " + std::to_string(lists_.size()) + " substitutions, no number " +
                     std::to_string(substitution));
  }
  const MatchList& list = of(substitution);
  if (location < 0 || static_cast<size_t>(location) >= list.size()) {
    throw IndexError("substitution " + std::to_string(substitution) + " has " + std::to_string(list.size()) +
                     " matches, no location " + std::to_string(location));
  }
  return list[at(location)];
}

void MatchSet::require(const Library& library) const {
  if (library.hash() != library_hash_) throw TypeError("the matches are those of another library");
}

MatchPtr MatchSet::add(Match match) {
  require_bounded(size_);
  auto shared = std::make_shared<const Match>(std::move(match));
  if (!lists_[at(shared->substitution)].insert(shared)) return nullptr;
  ++size_;
  fresh_.push_back(shared);
  return shared;
}

void MatchSet::insert(Match match) {
  const MatchPtr shared = add(std::move(match));
  if (shared == nullptr) return;
  for (const NodeId id : shared->nodes) {
    const auto& old = at_node_[at(id)];
    auto matches = old == nullptr ? std::make_shared<std::vector<MatchPtr>>()
                                  : std::make_shared<std::vector<MatchPtr>>(*old);
    matches->push_back(shared);
    at_node_.set(at(id), std::move(matches));
  }
}

void MatchSet::erase(const Match& match) {
  const MatchPtr erased = lists_[at(match.substitution)].erase(match);
  if (erased == nullptr) return;
  --size_;
  for (const NodeId id : erased->nodes) {
    auto matches = std::make_shared<std::vector<MatchPtr>>(*at_node_[at(id)]);
    std::erase(*matches, erased);
    at_node_.set(at(id), std::move(matches));
  }
}

MatchSet MatchSet::after(Graph next, const Library& library) const {
  require(library);
  MatchSet result = *this;
  const Change change = compare(graph_, next);
  result.update(std::move(next), change, library);
  return result;
}

std::optional<Change> MatchSet::step(const Match& match, const Library& library, std::string* refusal) {
  Applied applied = apply_match(graph_, library, match, &order_);
  if (!applied.graph) {
    if (refusal != nullptr) *refusal = std::move(applied.refusal);
    return std::nullopt;
  }
  applied.change.moves_dependence = moves_dependence(graph_, match, applied);
  update(std::move(*applied.graph), applied.change, library);
  return std::move(applied.change);
}

void MatchSet::update(Graph next, const Change& change, const Library& library) {
  const Graph before = std::move(graph_);
  graph_ = std::move(next);
  order_.update(graph_, change);
  while (at_node_.size() < at(graph_.end_id())) at_node_.push_back(nullptr);

  // A condition may depend on whether an input is static: treat the readers of changed nodes as changed.
  Rematch rematch{library, before, GraphIndex(graph_, &order_), {}, {}, {}, {}, {}};
  rematch.seeds = with_readers(graph_, {change.added, change.changed});
  rematch.wide_seeds = rematch.seeds;
  if (library.counts_uses()) {
    rematch.wide_seeds = with_readers(graph_, {change.added, change.changed, change.reread});
  }
  rematch.former_seeds = with_readers(before, {change.removed, change.changed});
  std::copy_if(rematch.seeds.begin(), rematch.seeds.end(), std::back_inserter(rematch.former_seeds),
               [&](NodeId id) { return before.alive(id); });
  sort_unique(rematch.former_seeds);

  std::vector<MatchPtr> stale;
  const auto collect = [&](const std::vector<NodeId>& ids, bool only_counting) {
    for (const NodeId id : ids) {
      if (at_node_[at(id)] == nullptr) continue;
      for (const MatchPtr& match : *at_node_[at(id)]) {
        if (!only_counting || library.pattern(match->substitution).counts_uses) stale.push_back(match);
      }
    }
  };
  collect(rematch.former_seeds, false);
  if (library.counts_uses()) collect(rematch.wide_seeds, true);
  sort_unique(stale);
  for (const MatchPtr& match : stale) {
    const CompiledPattern& pattern = library.pattern(match->substitution);
    if (pattern.mode == CompiledPattern::Mode::OrderedFamily) {
      rematch.starts.emplace_back(match->substitution, node_of_line(pattern, *match, pattern.plans[0].start));
    } else if (pattern.mode == CompiledPattern::Mode::FreeFamily) {
      rematch.keys.emplace_back(match->substitution, key_of(pattern, *match));
    }
    erase(*match);
  }
  if (change.moves_dependence) {
    rematch.keys.insert(rematch.keys.end(), conflicts_.begin(), conflicts_.end());
    for (int i = 0; i < static_cast<int>(lists_.size()); ++i) {
      const CompiledPattern& pattern = library.pattern(i);
      if (pattern.mode != CompiledPattern::Mode::FreeFamily) continue;
      lists_[at(i)].for_each([&](const Located& each) {
        if (!may_conflict(graph_, order_, pattern, *each.match)) return;
        rematch.keys.emplace_back(i, key_of(pattern, *each.match));
      });
    }
  }
  match_singles(rematch);
  match_ordered(rematch);
  match_free(rematch);
}

void MatchSet::match_singles(Rematch& rematch) {
  struct Start {
    int substitution;
    int plan;
    NodeId node;
    auto operator<=>(const Start&) const = default;
  };
  std::vector<Start> starts;
  for (const NodeId id : rematch.wide_seeds) {
    const bool is_wide = !std::binary_search(rematch.seeds.begin(), rematch.seeds.end(), id);
    for (const Library::Role& role : rematch.library.roles(graph_.node(id).op)) {
      const CompiledPattern& pattern = rematch.library.pattern(role.substitution);
      if (is_wide && !pattern.counts_uses) continue;
      const PatternLine& line = pattern.lines[at(role.line)];
      if (!rematch.index.may_be(line, id)) continue;
      if (pattern.mode == CompiledPattern::Mode::Single) {
        starts.push_back({role.substitution, role.plan, id});
      } else if (pattern.mode == CompiledPattern::Mode::OrderedFamily) {
        for (const NodeId start : follow(graph_, pattern, pattern.paths[at(role.line)], id)) {
          rematch.starts.emplace_back(role.substitution, start);
        }
      }
    }
  }
  std::sort(starts.begin(), starts.end());
  for (size_t i = 0; i < starts.size();) {
    const int substitution = starts[i].substitution;
    const CompiledPattern& pattern = rematch.library.pattern(substitution);
    Matcher matcher(graph_, rematch.index, rematch.library, substitution);
    for (; i < starts.size() && starts[i].substitution == substitution; ++i) {
      matcher.match_at(pattern.plans[at(starts[i].plan)], starts[i].node);
    }
    std::vector<Match> found = matcher.take();
    if (found.empty()) continue;
    for (Match& match : in_canonical_order(std::move(found), pattern)) insert(std::move(match));
  }
}

void MatchSet::match_ordered(Rematch& rematch) {
  sort_unique(rematch.starts);
  for (size_t i = 0; i < rematch.starts.size();) {
    const int substitution = rematch.starts[i].first;
    const CompiledPattern& pattern = rematch.library.pattern(substitution);
    const PatternPlan& plan = pattern.plans.front();
    Matcher matcher(graph_, rematch.index, rematch.library, substitution);
    for (; i < rematch.starts.size() && rematch.starts[i].first == substitution; ++i) {
      const NodeId start = rematch.starts[i].second;
      std::vector<MatchPtr> stale;
      if (at_node_[at(start)] != nullptr) {
        std::copy_if(at_node_[at(start)]->begin(), at_node_[at(start)]->end(), std::back_inserter(stale),
                     [&](const MatchPtr& match) {
                       return match->substitution == substitution &&
                              node_of_line(pattern, *match, plan.start) == start;
                     });
      }
      for (const MatchPtr& match : stale) erase(*match);
      if (graph_.alive(start) && rematch.index.may_be(pattern.lines[at(plan.start)], start)) {
        matcher.match_at(plan, start);
      }
    }
    for (Match& match : in_canonical_order(matcher.take(), pattern)) insert(std::move(match));
  }
}

std::vector<MatchPtr> MatchSet::of_key(int substitution, const CompiledPattern& pattern,
                                       const Key& key) const {
  std::vector<MatchPtr> found;
  // Each member reads the tensor by which the family is found. If it is gone, so are its matches.
  const Value shared = key[at(pattern.anchor.shared)];
  if (!graph_.alive(shared.node)) return found;
  for (const Use& use : graph_.uses(shared.node)) {
    if (use.node < 0 || at_node_[at(use.node)] == nullptr) continue;
    for (const MatchPtr& match : *at_node_[at(use.node)]) {
      if (match->substitution == substitution && key_of(pattern, *match) == key) found.push_back(match);
    }
  }
  sort_unique(found);
  return found;
}

void MatchSet::match_free(Rematch& rematch) {
  const GraphIndex before_index(rematch.before);
  const auto add_keys = [&](const Graph& graph, const GraphIndex& index, const std::vector<NodeId>& ids) {
    for (const NodeId id : ids) {
      for (const Library::Role& role : rematch.library.roles(graph.node(id).op)) {
        const CompiledPattern& pattern = rematch.library.pattern(role.substitution);
        if (pattern.mode != CompiledPattern::Mode::FreeFamily || role.plan < 0 || !pattern.is_local())
          continue;
        if (!index.may_be(pattern.lines[at(role.line)], id)) continue;
        std::vector<Key> keys;
        Matcher(graph, index, rematch.library, role.substitution)
            .add_keys_at(pattern.plans[at(role.plan)], id, keys);
        for (Key& key : keys) rematch.keys.emplace_back(role.substitution, std::move(key));
      }
    }
  };
  add_keys(rematch.before, before_index, rematch.former_seeds);
  add_keys(graph_, rematch.index, rematch.seeds);
  for (int i = 0; i < static_cast<int>(lists_.size()); ++i) {
    if (!rematch.library.pattern(i).is_local()) rematch.keys.emplace_back(i, Key{});
  }
  sort_unique(rematch.keys);
  for (const auto& [substitution, key] : rematch.keys) {
    const CompiledPattern& pattern = rematch.library.pattern(substitution);
    if (!pattern.is_local() && !key.empty()) continue;  // everything is matched again
    std::vector<MatchPtr> stale;
    if (pattern.is_local()) {
      stale = of_key(substitution, pattern, key);
    } else {
      lists_[at(substitution)].for_each([&](const Located& each) { stale.push_back(each.match); });
    }
    for (const MatchPtr& match : stale) erase(*match);
    Matcher matcher(graph_, rematch.index, rematch.library, substitution);
    std::vector<Match> found;
    if (pattern.is_local()) {
      matcher.match_key(key);
      found = matcher.take();
    } else {
      found = matcher.all();
    }
    for (Match& match : in_canonical_order(std::move(found), pattern)) insert(std::move(match));
    std::erase_if(conflicts_, [&, substitution = substitution, &key = key](const auto& each) {
      return each.first == substitution && (each.second == key || !pattern.is_local());
    });
    for (Key& each : matcher.take_conflicts()) conflicts_.emplace_back(substitution, std::move(each));
  }
  sort_unique(conflicts_);
}

}  // namespace rlopt
