// Searches part by part: the plan found for one part is applied to all equal parts.
#include <algorithm>
#include <unordered_map>

#include "search/part.h"
#include "search/tree.h"

namespace rlopt {

namespace {

constexpr size_t kSmallest = 20;  // operators of a part
constexpr size_t kFewest = 4;     // parts: in smaller graphs, parts hide more from each other than they save
constexpr double kUntil[] = {.35, .55, .7};  // of the budget: for single parts, pairs, groups of four
constexpr int64_t kFirstTurn = 100;          // expansions; doubled while no part improves

/// A step identified by what it matches, so that it can be replayed in another graph.
struct NamedStep {
  int substitution;
  std::vector<NodeId> nodes;
  NodeId first_new;  // ids from here on are new in the step
  NodeId end_new;
};

std::vector<NamedStep> name_steps(SearchTree& tree, const std::vector<Step>& steps) {
  std::vector<NamedStep> named;
  RewriteState state = *tree.made(SearchTree::kRoot);
  for (const Step& step : steps) {
    const MatchPtr match = state.matches().located(step.substitution, step.location).match;
    const NodeId first_new = state.graph().end_id();
    if (!state.step(step.substitution, step.location)) throw Error("a step of a part does not apply");
    named.push_back({step.substitution, match->nodes, first_new, state.graph().end_id()});
  }
  return named;
}

/// Replays a part's steps in a graph that contains it. `origins`: by id in the part, its node there. Skips a
/// step that does not exist there because context shared with other parts has changed.
void take(SearchTree& tree, Follower& follower, std::vector<NodeId> origins,
          const std::vector<NamedStep>& steps) {
  for (const NamedStep& step : steps) {
    origins.resize(static_cast<size_t>(step.end_new), -1);
    std::vector<NodeId> nodes;
    for (const NodeId id : step.nodes) nodes.push_back(origins[at(id)]);
    const auto location = follower.state().matches().of(step.substitution).find_nodes(nodes);
    const NodeId first_new = follower.state().graph().end_id();
    if (!location || !tree.has_room(follower.node())) continue;
    if (!follower.step({step.substitution, static_cast<int>(*location)})) continue;
    // Fewer nodes are made if some exist already, but it is unknown which ones.
    if (follower.state().graph().end_id() - first_new != step.end_new - step.first_new) continue;
    for (NodeId id = step.first_new; id < step.end_new; ++id) {
      origins[at(id)] = first_new + (id - step.first_new);
    }
  }
}

/// Equal parts, and their best known plan.
struct Kind {
  Part part;                     // the first of the equal parts
  std::vector<size_t> children;  // indices of the places in the previous level that form this one
  std::vector<Step> steps = {};
  std::vector<NamedStep> named = {};  // the same
  bool is_idle = false;               // its last turn found no improvement
  bool is_done = false;               // nothing else can be reached
};

/// The location of a part in the graph.
struct Place {
  size_t kind;
  std::vector<NodeId> origins;
  size_t begin, end;  // in the cut's order
};

struct Level {
  std::vector<Kind> kinds;
  std::vector<Place> places;                          // in sequence
  std::unordered_map<uint64_t, size_t> kind_of = {};  // by the hash of the part
};

class SearchByParts {
 public:
  SearchByParts(SearchTree& tree, Graph graph)
      : tree_(tree), graph_(std::move(graph)), cut_(cut(graph_, kSmallest)) {
    for (size_t i = 0; i + 1 < cut_.borders.size(); ++i) {
      add(level_, cut_.borders[i], cut_.borders[i + 1], {});
    }
  }

  size_t num_places() const { return level_.places.size(); }

  /// Searches the kinds of parts round-robin until this fraction of the budget is used: greedily first, so
  /// that each has a plan. Kinds whose last turn found an improvement are searched again; if there are none,
  /// all are, for longer.
  void search(double until) {
    auto& kinds = level_.kinds;
    tree_.renew_patience();
    int64_t expansions = kFirstTurn;
    bool are_all = true;
    const auto is_open = [](const Kind& kind) { return !kind.is_done; };
    for (uint64_t turn = 0; std::any_of(kinds.begin(), kinds.end(), is_open); ++turn) {
      for (Kind& kind : kinds) {
        if (kind.is_done || (kind.is_idle && !are_all)) continue;
        if (is_over(until) || !tree_.has_patience()) return;
        search(kind, turn, expansions);
      }
      are_all = std::all_of(kinds.begin(), kinds.end(),
                            [](const Kind& kind) { return kind.is_idle || kind.is_done; });
      if (are_all) expansions *= 2;
    }
  }

  /// Joins neighbouring parts in pairs. False, without any change, if that would take too long.
  bool join(double until) {
    Level next;
    const std::vector<Place>& places = level_.places;
    for (size_t i = 0; i < places.size(); i += 2) {
      std::vector<size_t> children{i};
      if (i + 1 < places.size()) children.push_back(i + 1);
      const size_t end = places[children.back()].end;
      add(next, places[i].begin, end, std::move(children));
    }
    for (Kind& kind : next.kinds) {
      if (is_over(until)) return false;
      begin(kind);
    }
    level_ = std::move(next);
    return true;
  }

  /// Takes the steps found for all parts; returns the node where they end.
  int put_together(int start) {
    Follower at(tree_, start);
    for (const Place& place : level_.places) {
      if (tree_.out_of_budget()) break;
      take(tree_, at, place.origins, level_.kinds[place.kind].named);
    }
    at.keep();
    return at.node();
  }

 private:
  bool is_over(double until) { return tree_.fraction_used() >= until || tree_.out_of_budget(); }

  static void note(Kind& kind, SearchTree& own, std::vector<Step> steps) {
    kind.named = name_steps(own, steps);
    kind.steps = std::move(steps);
  }

  void add(Level& level, size_t begin, size_t end, std::vector<size_t> children) {
    Part part = part_of(graph_, cut_, begin, end);
    const auto [found, is_new] = level.kind_of.emplace(part.graph.hash(), level.kinds.size());
    level.places.push_back({found->second, part.origins, begin, end});
    if (is_new) level.kinds.push_back({std::move(part), std::move(children)});
  }

  /// Initialises a part with the plans of its children.
  void begin(Kind& kind) {
    const std::function<bool()> never = [] { return false; };
    SearchTree own(kind.part.graph, tree_.library(), tree_.cost(), tree_.options(), never);
    Follower at = Follower::unevaluated(own, SearchTree::kRoot);
    std::unordered_map<NodeId, NodeId> here;
    for (size_t id = 0; id < kind.part.origins.size(); ++id) {
      here[kind.part.origins[id]] = static_cast<NodeId>(id);
    }
    for (const size_t child : kind.children) {
      std::vector<NodeId> origins = level_.places[child].origins;
      for (NodeId& id : origins) {
        const auto found = here.find(id);
        id = found == here.end() ? -1 : found->second;
      }
      take(own, at, std::move(origins), level_.kinds[level_.places[child].kind].named);
    }
    note(kind, own, own.result().steps);
  }

  void search(Kind& kind, uint64_t turn, int64_t expansions) {
    SearchOptions options = tree_.options();
    const int64_t most = options.budget_steps;
    options.budget_steps = most > 0 ? std::min(expansions, most - tree_.expansions()) : expansions;
    options.seed += turn;
    options.first = kind.steps;
    const std::function<bool()> interrupted = [this] { return tree_.out_of_budget(); };
    SearchTree own(kind.part.graph, tree_.library(), tree_.cost(), options, interrupted);
    const int local = follow_first(own, SearchTree::kRoot);
    const double before_us = own.best_us();
    if (turn == 0) {
      search_greedily(own, local, kAllOfIt);
    } else {
      iterate(own, SearchTree::kRoot, local);
    }
    const SearchResult found = own.result();
    tree_.count_expansions(found.expansions, found.candidates);
    kind.is_idle = found.cost_after_us >= before_us;
    kind.is_done = turn > 0 && found.exhausted;
    note(kind, own, found.steps);
    if (!kind.is_idle) tree_.renew_patience();
  }

  SearchTree& tree_;
  const Graph graph_;
  const Cut cut_;
  Level level_;
};

/// Completes the plan of the parts on the whole graph; returns its last node, or `start` for a small graph.
int search_parts(SearchTree& tree, int start) {
  if (tree.out_of_budget()) return start;
  SearchByParts parts(tree, tree.state(start)->graph());
  if (parts.num_places() < kFewest) return start;
  const double used = tree.fraction_used();
  for (const double until : kUntil) {
    const double end = used + (1 - used) * until;
    if (until > kUntil[0] && (parts.num_places() == 2 || !parts.join(end))) break;
    parts.search(end);
    if (tree.out_of_budget()) return start;
  }
  return search_greedily(tree, search_greedily(tree, parts.put_together(start)), kAllOfIt);
}

}  // namespace

void search_by_parts(SearchTree& tree, int start) {
  const int given = first_plan(tree, start);
  const int found = search_parts(tree, start);
  tree.renew_patience();
  iterate(tree, start, tree.cost_us(found) < tree.cost_us(given) ? found : given);
}

}  // namespace rlopt
