#include "search.h"

#include <algorithm>
#include <chrono>
#include <queue>
#include <random>
#include <unordered_set>

namespace rlopt {

namespace {

using Clock = std::chrono::steady_clock;

/// A graph that a search reached, with the way back to the start.
struct State {
  Graph graph;
  double cost_us = 0;
  int parent = -1;
  Step step;
};

struct Candidate {
  Step step;
  Graph graph;
  double cost_us = 0;
};

/// The cost after a step from the cost before: only what the step added, removed or touched is priced again.
double cost_after(const CostModel& cost, const Graph& before, double cost_before, const Applied& applied) {
  double delta = 0;
  for (const NodeId id : applied.removed) delta -= cost.node(before, id).time_us;
  for (const NodeId id : applied.added) delta += cost.node(*applied.graph, id).time_us;
  for (const NodeId id : applied.changed) {
    delta += cost.node(*applied.graph, id).time_us - cost.node(before, id).time_us;
  }
  return cost_before + delta;
}

/// What the searches share: budgets, expansion, states and the plan at the end.
class Searcher {
 public:
  Searcher(const Graph& graph, const Library& library, const CostModel& cost, const SearchOptions& options,
           const std::function<bool()>& interrupted)
      : library_(library), cost_(cost), options_(options), interrupted_(interrupted), start_(Clock::now()) {
    states_.push_back({graph, cost.total(graph).time_us, -1, {}});
  }

  SearchResult run() {
    const std::string& name = options_.searcher;
    if (name == "greedy") {
      greedy();
    } else if (name == "beam") {
      beam();
    } else if (name == "taso") {
      backtracking();
    } else if (name == "random") {
      random_walks();
    } else if (name != "none") {
      throw Error("unknown searcher '" + name + "'; expected none, greedy, beam, taso or random");
    }
    return result();
  }

 private:
  bool out_of_budget() {
    if (stopped_) return true;
    const double ms = std::chrono::duration<double, std::milli>(Clock::now() - start_).count();
    stopped_ = (options_.budget_ms <= 0 || ms >= options_.budget_ms) ||
               (options_.budget_steps > 0 && expansions_ >= options_.budget_steps) ||
               (interrupted_ && interrupted_());
    return stopped_;
  }

  bool is_allowed(int substitution) const {
    return !options_.exact_only || library_.substitutions()[static_cast<size_t>(substitution)].exact;
  }

  /// Calls visit(step, applied, cost) for every legal step from a graph; ends early when the budget does.
  template <class Visit>
  void expand(const Graph& graph, double cost_us, const Visit& visit) {
    ++expansions_;
    int substitution = -1;
    int location = 0;
    for (const Match& match : find_all_matches(graph, library_)) {
      location = match.substitution == substitution ? location + 1 : 0;
      substitution = match.substitution;
      if (!is_allowed(substitution)) continue;
      if (out_of_time()) return;
      const Applied applied = apply_match(graph, library_, match);
      if (!applied.graph) continue;
      ++candidates_;
      visit(Step{substitution, location}, applied, cost_after(cost_, graph, cost_us, applied));
    }
  }

  /// The part of the budget that may run out within one expansion.
  bool out_of_time() {
    if (++polls_ % 16 != 0) return stopped_;
    const int64_t expansions = expansions_;
    expansions_ = 0;  // an expansion that has begun may be finished
    const bool out = out_of_budget();
    expansions_ = expansions;
    return out;
  }

  int add_state(Graph graph, double cost_us, int parent, Step step) {
    states_.push_back({std::move(graph), cost_us, parent, step});
    const int index = static_cast<int>(states_.size()) - 1;
    if (cost_us < states_[static_cast<size_t>(best_)].cost_us) best_ = index;
    return index;
  }

  /// Families open up in waves: what exposes structure first (a fused epilogue hides a low-rank pair or a sum
  /// of convolutions from the substitutions that would remove it), what hides it last. Before each wave the
  /// graph is brought to normal form; within a wave, steps that save are taken until none does.
  void greedy() {
    static const std::vector<std::string> kNormalForm{"normalise"};
    static const std::vector<std::string> kExposing{"normalise", "clean",       "recognise",
                                                    "fold",      "convolution", "algebra"};
    static const std::vector<std::string> kMerging{"normalise", "clean",       "recognise",
                                                   "fold",      "convolution", "algebra",
                                                   "merge",     "movement",    "activation"};
    current_ = 0;
    for (const auto* wave : {&kExposing, &kMerging, static_cast<const std::vector<std::string>*>(nullptr)}) {
      do {
        while (sweep(&kNormalForm, kNormalFormTolerance) && !out_of_budget()) {
        }
      } while (sweep(wave, -kMinSaving) && !out_of_budget());
    }
  }

  /// Lists the matches of some families (null: all) once and takes those that cost at most `tolerance` more,
  /// the largest saving first, while they are as they were listed. True if any was taken.
  bool sweep(const std::vector<std::string>* families, double tolerance) {
    struct Saving {
      double delta;
      Match match;
    };
    const State start = states_[static_cast<size_t>(current_)];
    std::vector<Saving> savings;
    ++expansions_;
    for (Match& match : find_all_matches(start.graph, library_)) {
      const auto& family = library_.substitutions()[static_cast<size_t>(match.substitution)].family;
      if (families != nullptr && std::find(families->begin(), families->end(), family) == families->end())
        continue;
      if (!is_allowed(match.substitution)) continue;
      if (out_of_time()) break;
      const Applied applied = apply_match(start.graph, library_, match);
      if (!applied.graph) continue;
      ++candidates_;
      const double delta = cost_after(cost_, start.graph, start.cost_us, applied) - start.cost_us;
      if (delta <= tolerance) savings.push_back({delta, std::move(match)});
    }
    std::stable_sort(savings.begin(), savings.end(),
                     [](const Saving& a, const Saving& b) { return a.delta < b.delta; });
    std::unordered_set<NodeId> stale;
    bool taken = false;
    for (const Saving& saving : savings) {
      if (out_of_budget()) break;
      taken = take(saving.match, tolerance, stale) || taken;
    }
    return taken;
  }

  /// Takes a listed match from the current state if it still stands there at a cost of at most `tolerance`.
  bool take(const Match& listed, double tolerance, std::unordered_set<NodeId>& stale) {
    const auto is_stale = [&](NodeId id) { return stale.contains(id); };
    if (std::any_of(listed.nodes.begin(), listed.nodes.end(), is_stale)) return false;
    const State current = states_[static_cast<size_t>(current_)];
    if (depth(current_) >= options_.max_length) return false;
    const std::vector<Match> matches = find_matches(current.graph, library_, listed.substitution);
    const auto found = std::find_if(matches.begin(), matches.end(),
                                    [&](const Match& each) { return each.nodes == listed.nodes; });
    if (found == matches.end()) return false;
    const Applied applied = apply_match(current.graph, library_, *found);
    if (!applied.graph) return false;
    const double cost_us = cost_after(cost_, current.graph, current.cost_us, applied);
    if (cost_us > current.cost_us + tolerance) return false;
    stale.insert(applied.removed.begin(), applied.removed.end());
    stale.insert(applied.changed.begin(), applied.changed.end());
    const Step step{listed.substitution, static_cast<int>(found - matches.begin())};
    current_ = add_state(*applied.graph, cost_us, current_, step);
    return true;
  }

  int depth(int state) const {
    int length = 0;
    for (int i = state; states_[static_cast<size_t>(i)].parent >= 0;
         i = states_[static_cast<size_t>(i)].parent) {
      ++length;
    }
    return length;
  }

  /// Keeps the `beam_width` cheapest graphs of each length.
  void beam() {
    std::vector<int> frontier{0};
    std::unordered_set<uint64_t> seen{states_[0].graph.hash()};
    for (int length = 0; length < options_.max_length && !frontier.empty() && !out_of_budget(); ++length) {
      struct Next {
        double cost_us;
        int parent;
        Candidate candidate;
      };
      std::vector<Next> next;
      for (const int index : frontier) {
        if (out_of_budget()) break;
        const State from = states_[static_cast<size_t>(index)];
        expand(from.graph, from.cost_us, [&](Step step, const Applied& applied, double cost_us) {
          if (seen.insert(applied.graph->hash()).second) {
            next.push_back({cost_us, index, {step, *applied.graph, cost_us}});
          }
        });
      }
      std::stable_sort(next.begin(), next.end(),
                       [](const Next& a, const Next& b) { return a.cost_us < b.cost_us; });
      if (next.size() > static_cast<size_t>(options_.beam_width))
        next.resize(static_cast<size_t>(options_.beam_width));
      frontier.clear();
      for (Next& each : next) {
        frontier.push_back(
            add_state(std::move(each.candidate.graph), each.cost_us, each.parent, each.candidate.step));
      }
    }
  }

  /// TASO (SOSP 2019), Algorithm 1: cheapest first; graphs up to alpha times the best cost stay in the queue.
  void backtracking() {
    using Entry = std::pair<double, int>;  // cost, state: the older of equals first
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
    std::unordered_set<uint64_t> seen{states_[0].graph.hash()};
    queue.emplace(states_[0].cost_us, 0);
    while (!queue.empty() && !out_of_budget()) {
      const int index = queue.top().second;
      queue.pop();
      const State from = states_[static_cast<size_t>(index)];
      if (depth(index) >= options_.max_length) continue;
      expand(from.graph, from.cost_us, [&](Step step, const Applied& applied, double cost_us) {
        const double best_us = states_[static_cast<size_t>(best_)].cost_us;
        if (cost_us >= options_.alpha * best_us) return;
        if (!seen.insert(applied.graph->hash()).second) return;
        queue.emplace(cost_us, add_state(*applied.graph, cost_us, index, step));
      });
    }
  }

  /// Uniform random steps from the start, again and again, until the budget ends.
  void random_walks() {
    std::mt19937_64 random(options_.seed);
    while (!out_of_budget()) {
      int index = 0;
      for (int length = 0; length < options_.max_length && !out_of_budget(); ++length) {
        std::vector<Candidate> candidates;
        const State from = states_[static_cast<size_t>(index)];
        expand(from.graph, from.cost_us, [&](Step step, const Applied& applied, double cost_us) {
          candidates.push_back({step, *applied.graph, cost_us});
        });
        // Stopping is one choice among the steps, so walks of every length are tried.
        const uint64_t choice = random() % (candidates.size() + 1);
        if (choice == candidates.size()) break;
        Candidate& taken = candidates[choice];
        index = add_state(std::move(taken.graph), taken.cost_us, index, taken.step);
      }
      if (index == 0 && expansions_ > 0 && states_.size() == 1) idle_walks_ += 1;
      if (idle_walks_ > 64) return;  // nothing can be applied anywhere
    }
  }

  SearchResult result() {
    SearchResult result;
    std::vector<int> path;
    for (int i = best_; states_[static_cast<size_t>(i)].parent >= 0;
         i = states_[static_cast<size_t>(i)].parent) {
      path.push_back(i);
    }
    std::reverse(path.begin(), path.end());
    for (const int i : path) {
      result.steps.push_back(states_[static_cast<size_t>(i)].step);
      result.costs_us.push_back(states_[static_cast<size_t>(i)].cost_us);
    }
    result.graph = states_[static_cast<size_t>(best_)].graph;
    result.cost_before_us = states_[0].cost_us;
    result.cost_after_us = states_[static_cast<size_t>(best_)].cost_us;
    result.expansions = expansions_;
    result.candidates = candidates_;
    result.exhausted = !stopped_;
    result.seconds = std::chrono::duration<double>(Clock::now() - start_).count();
    return result;
  }

  static constexpr double kMinSaving = 1e-6;           // microseconds; below it is rounding
  static constexpr double kNormalFormTolerance = 0.5;  // what bringing one node to normal form may cost

  const Library& library_;
  const CostModel& cost_;
  const SearchOptions& options_;
  const std::function<bool()>& interrupted_;
  Clock::time_point start_;
  std::vector<State> states_;
  int best_ = 0;
  int current_ = 0;  // where the greedy search stands
  int64_t expansions_ = 0;
  int64_t candidates_ = 0;
  int64_t polls_ = 0;
  int idle_walks_ = 0;
  bool stopped_ = false;
};

}  // namespace

SearchResult search(const Graph& graph, const Library& library, const CostModel& cost,
                    const SearchOptions& options, const std::function<bool()>& interrupted) {
  return Searcher(graph, library, cost, options, interrupted).run();
}

Graph replay(const Graph& graph, const Library& library, const std::vector<Step>& steps) {
  Graph current = graph;
  for (size_t i = 0; i < steps.size(); ++i) {
    const auto fail = [&](const std::string& reason) {
      const auto& name = library.substitutions()[static_cast<size_t>(steps[i].substitution)].name;
      throw Error("step " + std::to_string(i) + " (" + name + ", location " +
                  std::to_string(steps[i].location) + ") cannot be replayed: " + reason);
    };
    const std::vector<Match> matches = find_matches(current, library, steps[i].substitution);
    if (steps[i].location < 0 || steps[i].location >= static_cast<int>(matches.size())) {
      fail("there are " + std::to_string(matches.size()) + " matches");
    }
    Applied applied = apply_match(current, library, matches[static_cast<size_t>(steps[i].location)]);
    if (!applied.graph) fail(applied.refusal);
    current = std::move(*applied.graph);
  }
  return current;
}

}  // namespace rlopt
