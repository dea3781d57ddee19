#include "search/state.h"

#include <algorithm>
#include <cstring>
#include <unordered_set>

#include "core/unique.h"

namespace rlopt {

namespace {

/// Weights and constants cost nothing, whatever reads them.
bool is_free(const Node& node) { return node.op == Op::Weight || node.op == Op::Constant; }

/// Whether a node is computed from weights only, once for all calls.
bool is_expression(const Node& node) { return node.is_static && !is_free(node); }

void add_neighbours(const Graph& graph, NodeId id, std::vector<NodeId>& ids) {
  for (const Value& input : graph.node(id).inputs) {
    if (input.present()) ids.push_back(input.node);
  }
  for (const Use& use : graph.uses(id)) {
    if (use.node >= 0) ids.push_back(use.node);
  }
}

/// The weights and constants that a node reads.
std::vector<NodeId> free_inputs(const Graph& graph, NodeId id) {
  std::vector<NodeId> found;
  for (const Value& input : graph.node(id).inputs)
    if (input.present() && is_free(graph.node(input.node))) found.push_back(input.node);
  return found;
}

/// Survivors of a step whose price may change.
std::vector<NodeId> repriced(const Graph& after, const Change& change, const CostModel& cost) {
  std::vector<NodeId> ids = change.changed;
  // A reshape is a view or a copy depending on its operand's producer.
  if (!cost.looks_at_neighbours()) return ids;
  for (const NodeId id : change.changed) add_neighbours(after, id, ids);
  for (const NodeId id : change.reread) {
    if (is_free(after.node(id))) continue;
    ids.push_back(id);
    for (const Use& use : after.uses(id)) {
      if (use.node >= 0) ids.push_back(use.node);
    }
  }
  sort_unique(ids);
  std::erase_if(ids,
                [&](NodeId id) { return std::binary_search(change.added.begin(), change.added.end(), id); });
  return ids;
}

int count_operators(const Graph& graph, const std::vector<NodeId>& ids) {
  return static_cast<int>(std::count_if(ids.begin(), ids.end(), [&](NodeId id) {
    const Node& node = graph.node(id);
    return !node.is_static && node.info().cost_class != CostClass::Leaf;
  }));
}

uint64_t hash_type(const TensorType& type) {
  uint64_t hash = hash_mix(static_cast<uint64_t>(type.dtype), type.dims.size());
  for (const Dim& dim : type.dims) {
    hash = hash_mix(hash, dim.is_static() ? static_cast<uint64_t>(dim.value()) : hash_string(dim.str()));
  }
  return hash;
}

/// Matches of a class are indistinguishable to the agent: equal operators, attributes, types, neighbours and
/// prices.
uint64_t symmetry_class(const Graph& graph, const Match& match, const Evaluation& evaluation) {
  uint64_t hash =
      hash_mix(static_cast<uint64_t>(match.substitution), static_cast<uint64_t>(match.num_members));
  for (const NodeId id : match.nodes) {
    const Node& node = graph.node(id);
    hash = hash_mix(hash, hash_mix(static_cast<uint64_t>(node.op), node.attrs->fingerprint()));
    hash = hash_mix(hash, graph.uses(id).size());
    for (const TensorType& type : *node.types) hash = hash_mix(hash, hash_type(type));
    for (const Value& input : node.inputs) {
      if (!input.present()) continue;
      hash = hash_mix(
          hash, hash_mix(hash_type(graph.type(input)), static_cast<uint64_t>(graph.node(input.node).op)));
    }
  }
  hash = hash_mix(hash, hash_mix(static_cast<uint64_t>(evaluation.num_added),
                                 static_cast<uint64_t>(evaluation.num_removed)));
  const auto rounded = static_cast<int64_t>(evaluation.delta.time_us * 1e6);
  return hash_mix(hash, static_cast<uint64_t>(rounded));
}

}  // namespace

RewriteState::RewriteState(Graph graph, const Library& library, const CostModel& cost, bool exact_only)
    : library_(&library), cost_(&cost), matches_(std::move(graph), library) {
  for (const Substitution& each : library.substitutions()) is_allowed_.push_back(!exact_only || each.exact);
  const Graph& start = this->graph();
  for (NodeId id = 0; id < start.end_id(); ++id) {
    prices_.push_back(start.alive(id) ? cost.node(start, id) : NodeMetrics{});
    watchers_.push_back(nullptr);
    read_watchers_.push_back(nullptr);
    expression_watchers_.push_back(nullptr);
    total_ += prices_[at(id)];
  }
  pending_ = matches_.take_fresh();
}

bool RewriteState::step(int substitution, int location) {
  const MatchPtr match = matches_.located(substitution, location).match;
  const Graph before = graph();
  const std::optional<Change> made = matches_.step(*match, *library_);
  if (!made) return false;
  const Change& change = *made;
  update_prices(before, change);
  while (watchers_.size() < at(graph().end_id())) {
    watchers_.push_back(nullptr);
    read_watchers_.push_back(nullptr);
    expression_watchers_.push_back(nullptr);
  }
  invalidate(watchers_, change.removed);
  invalidate(watchers_, change.changed);
  invalidate(read_watchers_, change.removed);
  invalidate(read_watchers_, change.reread);
  // Weights have many readers. Only expressions over them matter, for candidates that would add the same one.
  for (const NodeId id : change.added)
    if (is_expression(graph().node(id))) invalidate(expression_watchers_, free_inputs(graph(), id));
  for (const NodeId id : change.removed)
    if (before.alive(id) && is_expression(before.node(id)))
      invalidate(expression_watchers_, free_inputs(before, id));
  if (change.moves_dependence) {
    // Whether a cycle would close depends on the whole graph.
    for (int i = 0; i < static_cast<int>(is_allowed_.size()); ++i) {
      const Substitution& substitution = library_->substitutions()[at(i)];
      const bool has_one_output =
          substitution.outputs.size() < 2 &&
          std::none_of(
              substitution.outputs.begin(), substitution.outputs.end(),
              [&](const Output& output) { return substitution.tensors[at(output.old_slot)].starred; });
      const bool is_free_family = library_->pattern(i).mode == CompiledPattern::Mode::FreeFamily;
      if (has_one_output) continue;
      if (is_free_family && library_->pattern(i).is_local())
        continue;  // its members do not depend on each other
      std::vector<MatchPtr> stale;
      matches_.of(i).for_each([&](const Located& located) {
        if (located.evaluation != nullptr) stale.push_back(located.match);
      });
      for (const MatchPtr& each : stale) {
        matches_.set_evaluation(*each, nullptr);
        pending_.push_back(each);
      }
    }
  }
  for (MatchPtr& fresh : matches_.take_fresh()) pending_.push_back(std::move(fresh));
  return true;
}

void RewriteState::update_prices(const Graph& before, const Change& change) {
  const Graph& after = graph();
  while (prices_.size() < at(after.end_id())) prices_.push_back({});
  const auto set = [&](NodeId id, const NodeMetrics& price) {
    total_ -= prices_[at(id)];
    total_ += price;
    prices_.set(at(id), price);
  };
  for (const NodeId id : change.removed) {
    if (before.alive(id)) set(id, {});
  }
  for (const NodeId id : change.added) set(id, cost_->node(after, id));
  for (const NodeId id : repriced(after, change, *cost_)) set(id, cost_->node(after, id));
}

void RewriteState::invalidate(Watchers& watchers, const std::vector<NodeId>& ids) {
  for (const NodeId id : ids) {
    const auto stale = watchers[at(id)];
    if (stale == nullptr) continue;
    watchers.set(at(id), nullptr);
    for (const MatchPtr& match : *stale) {
      if (MatchPtr present = matches_.set_evaluation(*match, nullptr)) pending_.push_back(std::move(present));
    }
  }
}

void RewriteState::watch(Watchers& watchers, const std::vector<NodeId>& ids, const MatchPtr& match) {
  for (const NodeId id : ids) {
    const auto& old = watchers[at(id)];
    if (old != nullptr && std::find(old->begin(), old->end(), match) != old->end()) continue;
    auto matches = old == nullptr ? std::make_shared<std::vector<MatchPtr>>()
                                  : std::make_shared<std::vector<MatchPtr>>(*old);
    matches->push_back(match);
    watchers.set(at(id), std::move(matches));
  }
}

void RewriteState::evaluate_match(const MatchPtr& match) {
  if (!is_allowed(match->substitution)) return;
  const Located* located = matches_.of(match->substitution).look_up(*match);
  if (located == nullptr || located->match != match || located->evaluation != nullptr) return;
  ++num_evaluations_;
  const Graph& before = graph();
  Applied applied = apply_match(before, *library_, *match, &matches_.order());
  auto result = std::make_shared<Evaluation>();
  result->is_legal = applied.graph.has_value();
  std::vector<NodeId> shared;  // weights over which it would add expressions
  std::vector<NodeId>& watched = result->watched;
  std::vector<NodeId>& reads = result->watched_reads;
  watched = match->nodes;
  if (result->is_legal) {
    const Graph& after = *applied.graph;
    const Change& change = applied.change;
    const std::vector<NodeId> others = repriced(after, change, *cost_);
    for (const NodeId id : change.removed) result->delta -= prices_[at(id)];
    for (const NodeId id : change.added) result->delta += cost_->node(after, id);
    for (const NodeId id : others) {
      result->delta += cost_->node(after, id);
      result->delta -= prices_[at(id)];
    }
    result->hash_delta = after.state_hash() - before.state_hash();
    result->num_added = count_operators(after, change.added);
    result->num_removed = count_operators(before, change.removed);
    result->edits = change.removed;
    result->edits.insert(result->edits.end(), change.changed.begin(), change.changed.end());
    result->rereads = change.removed;
    std::copy_if(change.reread.begin(), change.reread.end(), std::back_inserter(result->rereads),
                 [&](NodeId id) { return !is_free(before.node(id)); });
    watched.insert(watched.end(), result->edits.begin(), result->edits.end());
    reads = result->rereads;
    if (cost_->looks_at_neighbours()) {
      for (const NodeId id : others) {
        watched.push_back(id);
        add_neighbours(before, id, watched);
        add_neighbours(after, id, watched);
      }
      std::erase_if(watched, [&](NodeId id) { return !before.alive(id) || is_free(before.node(id)); });
      reads.insert(reads.end(), watched.begin(), watched.end());
    }
    result->class_hash = symmetry_class(before, *match, *result);
    for (const NodeId id : change.added) {
      if (!is_expression(after.node(id))) continue;
      // A candidate that adds the same expression reads all of its inputs, so watching one is enough. Prefer
      // a weight: a constant may have more readers.
      std::vector<NodeId> inputs = free_inputs(after, id);
      std::erase_if(inputs, [&](NodeId input) { return input >= before.end_id(); });
      const auto weight = std::find_if(inputs.begin(), inputs.end(),
                                       [&](NodeId input) { return after.node(input).op == Op::Weight; });
      if (!inputs.empty()) shared.push_back(weight == inputs.end() ? inputs.front() : *weight);
    }
  }
  // The replacement's operands decide which of its nodes exist already, and which nodes die with the pattern.
  for (const NodeId id : match->nodes) {
    reads.push_back(id);
    for (const Value& input : before.node(id).inputs) {
      if (input.present() && !is_free(before.node(input.node))) reads.push_back(input.node);
    }
  }
  sort_unique(watched);
  sort_unique(reads);
  watch(watchers_, watched, match);
  watch(read_watchers_, reads, match);
  watch(expression_watchers_, shared, match);
  matches_.set_evaluation(*match, std::move(result));
}

const Evaluation* RewriteState::evaluate(int substitution, int location) {
  const Located& located = matches_.located(substitution, location);
  if (located.evaluation == nullptr) evaluate_match(MatchPtr(located.match));
  return matches_.located(substitution, location).evaluation.get();
}

std::vector<Candidate> RewriteState::candidates() const {
  std::vector<Candidate> all;
  for_each_candidate([&](const Candidate& candidate) { all.push_back(candidate); });
  return all;
}

std::vector<Candidate> independent(const std::vector<Candidate>& alike) {
  std::unordered_set<NodeId> edits, rereads, watched, watched_reads;
  const auto meets = [](const std::vector<NodeId>& ids, const std::unordered_set<NodeId>& marks) {
    return std::any_of(ids.begin(), ids.end(), [&](NodeId id) { return marks.contains(id); });
  };
  std::vector<Candidate> accepted;
  for (const Candidate& each : alike) {
    const Evaluation& e = each.evaluation();
    if (meets(e.edits, watched) || meets(e.rereads, watched_reads) || meets(e.watched, edits) ||
        meets(e.watched_reads, rereads)) {
      continue;
    }
    edits.insert(e.edits.begin(), e.edits.end());
    rereads.insert(e.rereads.begin(), e.rereads.end());
    watched.insert(e.watched.begin(), e.watched.end());
    watched_reads.insert(e.watched_reads.begin(), e.watched_reads.end());
    accepted.push_back(each);
  }
  return accepted;
}

}  // namespace rlopt
