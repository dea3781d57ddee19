// What the searches share: the graphs that were reached, budgets, and the plan at the end. Internal to
// this folder.
#pragma once

#include <deque>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "core/own_clock.h"
#include "search/search.h"
#include "search/state.h"

namespace rlopt {

/// A step that a search may take, priced but not applied.
struct Offer {
  Step step;
  double cost_us = 0;  // afterwards
  uint64_t hash = 0;   // afterwards: the same whatever the order of commuting steps
};

/// All graphs that a search reached, each by one step from another. Only some are held in memory; the others
/// are made again from the nearest ancestor that is.
class SearchTree {
 public:
  SearchTree(const Graph& graph, const Library& library, const CostModel& cost, const SearchOptions& options,
             const std::function<bool()>& interrupted);

  static constexpr int kRoot = 0;
  double cost_us(int node) const { return nodes_[static_cast<size_t>(node)].cost_us; }
  int depth(int node) const { return nodes_[static_cast<size_t>(node)].depth; }
  int parent(int node) const { return nodes_[static_cast<size_t>(node)].parent; }
  int best() const { return best_; }
  double best_us() const { return cost_us(best_); }
  /// Whether a plan that leads through the node may have so many steps more.
  bool has_room(int node, int num_steps = 1);

  /// The graph of a node with every candidate evaluated, as far as the budget goes. The pointer keeps it.
  std::shared_ptr<RewriteState> state(int node);
  /// The same; of its candidates those are evaluated that were.
  std::shared_ptr<RewriteState> made(int node);
  /// Counts an expansion and gives the legal steps from a node, in canonical order.
  std::vector<Offer> expand(int node);
  int add(int parent, Step step, double cost_us);
  /// Keeps the state of a node for those who ask for it later.
  void hold(int node, std::shared_ptr<RewriteState> state);
  /// For callers who follow a state of their own; `evaluations`: since the last call.
  void count_expansion(int64_t evaluations) { count_expansions(1, evaluations); }
  void count_expansions(int64_t expansions, int64_t evaluations) {
    expansions_ += expansions;
    candidates_ += evaluations;
  }

  int64_t expansions() const { return expansions_; }
  bool out_of_budget();
  /// Ends the search for good where as many expansions as `patience` found nothing cheaper.
  bool out_of_patience();
  /// False after as many expansions as `patience` since something cheaper was found, or since
  /// `renew_patience`.
  bool has_patience() const { return options_.patience == 0 || expansions_ - gained_at_ < options_.patience; }
  void renew_patience() { gained_at_ = expansions_; }
  /// Until the next call the budget ends after so many milliseconds from now, if that is earlier.
  void set_slice(double ms);
  bool is_out_for_good() const { return stopped_; }
  /// Says that something was left out that might have found more.
  void note_cut() { is_cut_ = true; }
  /// Part of the budget that is used, 0 to 1.
  double fraction_used() const;

  const Library& library() const { return library_; }
  const CostModel& cost() const { return cost_; }
  const SearchOptions& options() const { return options_; }
  SearchResult result();

 private:
  struct Node {
    double cost_us = 0;
    int parent = -1;
    int depth = 0;
    Step step;
  };
  static constexpr size_t kMaxHeld = 1500;

  void note_best(int node);

  const Library& library_;
  const CostModel& cost_;
  const SearchOptions& options_;
  const std::function<bool()>& interrupted_;
  OwnClock clock_;
  std::vector<Node> nodes_;
  std::shared_ptr<RewriteState> root_;
  std::unordered_map<int, std::shared_ptr<RewriteState>> held_;
  std::deque<int> held_order_;
  int best_ = 0;
  double slice_end_ms_;
  int64_t expansions_ = 0;
  int64_t candidates_ = 0;
  int64_t gained_at_ = 0;  // expansions
  bool stopped_ = false;
  int max_length_;
  bool is_cut_ = false;  // something was left out that might have found more
  std::vector<SearchProgress> progress_;
};

/// A state that a search follows by itself, with its candidates evaluated as far as the budget goes.
class Follower {
 public:
  Follower(SearchTree& tree, int node) : tree_(tree) { restart(node); }
  /// With what is evaluated already only.
  static Follower unevaluated(SearchTree& tree, int node) { return Follower(tree, node, tree.made(node)); }
  ~Follower();
  Follower(const Follower&) = delete;
  Follower& operator=(const Follower&) = delete;
  void restart(int node);
  int node() const { return node_; }
  RewriteState& state() { return *state_; }
  /// Counts an expansion and evaluates.
  void expand();
  /// False where the step is refused.
  bool step(Step step);
  /// Spares who goes on from here the way; to be called last.
  void keep() { tree_.hold(node_, state_); }

 private:
  Follower(SearchTree& tree, int node, const std::shared_ptr<RewriteState>& state)
      : tree_(tree),
        node_(node),
        state_(std::make_shared<RewriteState>(*state)),
        num_counted_(state_->num_evaluations()) {}

  SearchTree& tree_;
  int node_ = 0;
  std::shared_ptr<RewriteState> state_;
  int64_t num_counted_ = 0;  // evaluations
};

/// The families of the library in the order in which the greedy search opens them up.
const std::vector<std::vector<std::string>>& family_waves();

/// Parts of the budget for chains: all of it, or what leaves time for the waves after them.
constexpr double kAllOfIt = 1;
constexpr double kMostOfIt = 0.8;

/// Families open up in waves, from `start`; the node where no step of any wave saves.
/// Where none saves, short chains of steps that meet, of which the first may lose, are tried too, as long as
/// less than `chains_until` of the budget is used.
int search_greedily(SearchTree& tree, int start, double chains_until = 0);
/// Greedy with chains from the start, then again and again from where random steps lead.
void search_with_restarts(SearchTree& tree, int start);
/// Iterated local search: the plan is cut, some random steps are taken, greedy with chains goes on; a plan
/// that is no dearer takes its place.
void search_iteratively(SearchTree& tree, int start);
/// The same from a plan that leads from `start` to `local`.
void iterate(SearchTree& tree, int start, int local);
/// Takes the steps of the plan that the options give; the node where it ends.
int follow_first(SearchTree& tree, int start);
/// The same, or greedy with chains where the options give no plan.
int first_plan(SearchTree& tree, int start);
/// From the first plan; iterated local search of each part of the graph, of two neighbours together, of four;
/// and of the whole graph from the cheaper plan. A graph of few parts is searched as a whole only.
void search_by_parts(SearchTree& tree, int start);
/// Keeps the cheapest graphs of each length.
void search_beam(SearchTree& tree, int start, int width);
/// TASO (SOSP 2019), Algorithm 1, from several starts.
void search_backtracking(SearchTree& tree, const std::vector<int>& starts, double alpha);
/// Draws each step by its cost; dearer ones ever more rarely.
void search_annealing(SearchTree& tree, int start, uint64_t seed, double first_temperature,
                      double end_fraction);
/// Uniform random steps from the start, again and again.
void search_random(SearchTree& tree);

}  // namespace rlopt
