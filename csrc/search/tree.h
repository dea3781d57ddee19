// Shared by the searches: reached graphs, budgets, and the final plan. Internal to this folder.
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

/// A legal step, priced but not applied.
struct Offer {
  Step step;
  double cost_us = 0;  // after the step
  uint64_t hash = 0;   // after the step; the same for any order of commuting steps
};

/// All graphs that a search reached, each by one step from another. Only some are held in memory; the others
/// are recomputed from the nearest ancestor in memory.
class SearchTree {
 public:
  SearchTree(const Graph& graph, const Library& library, const CostModel& cost, const SearchOptions& options,
             const std::function<bool()>& interrupted);

  static constexpr int kRoot = 0;
  double cost_us(int node) const { return nodes_[at(node)].cost_us; }
  int depth(int node) const { return nodes_[at(node)].depth; }
  int parent(int node) const { return nodes_[at(node)].parent; }
  int best() const { return best_; }
  double best_us() const { return cost_us(best_); }
  /// Whether a plan through the node may have this many more steps.
  bool has_room(int node, int num_steps = 1);

  /// The graph of a node with every candidate evaluated, as far as the budget allows. The pointer keeps it
  /// alive.
  std::shared_ptr<RewriteState> state(int node);
  /// The same, without new evaluations.
  std::shared_ptr<RewriteState> made(int node);
  /// Counts an expansion and returns the legal steps from a node, in canonical order.
  std::vector<Offer> expand(int node);
  int add(int parent, Step step, double cost_us);
  /// Caches the state of a node.
  void hold(int node, std::shared_ptr<RewriteState> state);
  /// For callers that follow their own state; `evaluations`: since the last call.
  void count_expansion(int64_t evaluations) { count_expansions(1, evaluations); }
  void count_expansions(int64_t expansions, int64_t evaluations) {
    expansions_ += expansions;
    candidates_ += evaluations;
  }

  int64_t expansions() const { return expansions_; }
  bool out_of_budget();
  /// Ends the search for good if `patience` expansions found no improvement.
  bool out_of_patience();
  /// False after `patience` expansions without improvement, counted also from `renew_patience`.
  bool has_patience() const { return options_.patience == 0 || expansions_ - gained_at_ < options_.patience; }
  void renew_patience() { gained_at_ = expansions_; }
  /// Until the next call, the budget ends this many milliseconds from now if that is earlier.
  void set_slice(double ms);
  bool is_out_for_good() const { return stopped_; }
  /// Records that a candidate was pruned that might have led to an improvement.
  void note_cut() { is_cut_ = true; }
  /// Used fraction of the budget, 0 to 1.
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
  int64_t gained_at_ = 0;  // expansions at the last improvement
  bool stopped_ = false;
  int max_length_;
  bool is_cut_ = false;  // a pruned candidate might have led to an improvement
  std::vector<SearchProgress> progress_;
};

/// A state that a search follows by itself, with candidates evaluated as far as the budget allows.
class Follower {
 public:
  Follower(SearchTree& tree, int node) : tree_(tree) { restart(node); }
  /// Only with existing evaluations.
  static Follower unevaluated(SearchTree& tree, int node) { return Follower(tree, node, tree.made(node)); }
  ~Follower();
  Follower(const Follower&) = delete;
  Follower& operator=(const Follower&) = delete;
  void restart(int node);
  int node() const { return node_; }
  RewriteState& state() { return *state_; }
  /// Counts an expansion and evaluates.
  void expand();
  /// False if the step is refused.
  bool step(Step step);
  /// Caches the state for searches that continue from here; call last.
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
  int64_t num_counted_ = 0;  // evaluations counted so far
};

/// Fractions of the budget for chains: all of it, or one that leaves time for the later waves.
constexpr double kAllOfIt = 1;
constexpr double kMostOfIt = 0.8;

/// Greedy search from `start`, opening families in waves; returns the node at which no step of any wave
/// reduces the cost. Then it also tries chains, short sequences of adjacent steps whose first may raise the
/// cost, while less than `chains_until` of the budget is used.
int search_greedily(SearchTree& tree, int start, double chains_until = 0);
/// Greedy with chains from the start, then repeatedly from the ends of random walks.
void search_with_restarts(SearchTree& tree, int start);
/// Iterated local search: cut the plan, take some random steps, continue greedily with chains; accept a plan
/// that costs no more.
void search_iteratively(SearchTree& tree, int start);
/// The same, starting from a plan that leads from `start` to `local`.
void iterate(SearchTree& tree, int start, int local);
/// Takes the steps of the plan in the options; returns its last node.
int follow_first(SearchTree& tree, int start);
/// The same, or greedy with chains if the options have no plan.
int first_plan(SearchTree& tree, int start);
/// Starts from the first plan; iterated local search of each part of the graph, of pairs of neighbours, of
/// groups of four; then of the whole graph from the cheaper plan. A graph with few parts is only searched as
/// a whole.
void search_by_parts(SearchTree& tree, int start);
/// Beam search: keeps the cheapest graphs of each length.
void search_beam(SearchTree& tree, int start, int width);
/// TASO (SOSP 2019), Algorithm 1, from several starts.
void search_backtracking(SearchTree& tree, const std::vector<int>& starts, double alpha);
/// Simulated annealing: draws each step by its cost, with a falling temperature.
void search_annealing(SearchTree& tree, int start, uint64_t seed, double first_temperature,
                      double end_fraction);

}  // namespace rlopt
