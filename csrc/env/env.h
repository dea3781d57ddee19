// Many episodes of rewriting over different graphs, stepped by several threads.
#pragma once

#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/workers.h"
#include "env/observation.h"
#include "search/plan.h"

namespace rlopt {

/// A request for something that the environment does not have.
class EnvError : public Error {
 public:
  using Error::Error;
};

struct EnvOptions {
  int num_envs = 1;
  int num_threads = 1;
  int max_steps = 100;      // per episode; a macro step counts as one
  int max_locations = 200;  // per substitution in the fixed-size mask
  bool has_macros = true;   // also offer "the whole symmetry class" as one action
  bool exact_only = false;
};

/// Where an episode begins: the graph itself, or the graph after a plan or a random walk.
struct Start {
  int graph = 0;
  std::vector<Step> prefix;  // steps taken first
  int random_steps = 0;      // number of random steps after that; fewer if none are left
  uint64_t seed = 0;         // of the walk
};

/// The result of a step. Rewards are derived from it elsewhere.
struct StepOutcome {
  double cost_before_us = 0;
  double cost_after_us = 0;
  double best_us = 0;     // lowest cost in the episode, including its start
  double initial_us = 0;  // of the graph before any step
  NodeMetrics metrics;    // after the step
  int steps = 0;
  bool terminated = false;  // stop, or nothing left to do
  bool truncated = false;   // max_steps
  bool is_illegal = false;  // no such candidate: nothing changes, but the step counts
  bool is_visited = false;  // the graph occurred before in this episode
};

/// One episode. Not thread-safe.
class Episode {
 public:
  Episode(const EnvOptions& options, const Library& library) : options_(&options), library_(&library) {}

  /// Throws EnvError if a step of the prefix does not apply.
  void reset(const RewriteState& original, const Start& start);
  /// Continues from another episode's state, with its history.
  void copy_from(const Episode& other);
  /// `action`: index in `table()`; its size means stop. Anything else is illegal.
  StepOutcome step(int64_t action);
  /// Continues from another episode's state after one of its actions, except stop. Throws EnvError if it has
  /// no such action.
  StepOutcome branch_from(Episode& parent, int64_t action);
  /// The candidate of a (substitution, location); -1 if there is no legal one.
  int64_t find(int substitution, int location) const;

  /// Throws EnvError before the first reset.
  const RewriteState& state() const;
  /// Single candidates in canonical order, then the symmetry classes with more than one member.
  const std::vector<Action>& table();
  /// An action of `table()`. Throws EnvError if it does not exist.
  const Action& action_at(int64_t action);
  /// All steps from the original graph, including those before the episode's start.
  const std::vector<Step>& steps() const { return steps_; }
  const StepOutcome& outcome() const { return outcome_; }
  ObservedEpisode observed();

 private:
  bool take(int substitution, int location);
  void take_all(const std::vector<MatchPtr>& matches);
  void go_on(const std::vector<MatchPtr>& matches);
  void walk(int count, uint64_t seed);
  void note_state();

  const EnvOptions* options_;
  const Library* library_;
  std::unique_ptr<RewriteState> state_;
  std::vector<Action> table_;
  bool has_table_ = false;
  std::vector<Step> steps_;
  std::unordered_set<uint64_t> visited_;
  NodeMetrics initial_;
  StepOutcome outcome_;
  bool is_done_ = true;
};

class VecRewriteEnv {
 public:
  /// Lists the matches and prices the candidates of every graph.
  VecRewriteEnv(std::vector<Graph> graphs, Library library, CostModel cost, const EnvOptions& options);

  int num_envs() const { return options_.num_envs; }
  int num_graphs() const { return static_cast<int>(originals_.size()) / workers_.num_threads(); }
  const EnvOptions& options() const { return options_; }
  const Library& library() const { return library_; }
  const CostModel& cost() const { return cost_; }
  /// `envs`: the episodes to reset; `starts`: where they begin, in the same order.
  void reset(const std::vector<int>& envs, const std::vector<Start>& starts);
  /// One action per episode; those of finished episodes are ignored.
  std::vector<StepOutcome> step(const std::vector<int64_t>& actions);
  /// Makes an episode a copy of another, which costs far less than repeating its steps.
  void copy(int source, int target);
  /// Makes each target a copy of its source and takes one action there; returns the outcomes in order. Throws
  /// EnvError, without any change, if a target is repeated or is also a source, or an action does not exist.
  std::vector<StepOutcome> branch(const std::vector<int>& sources, const std::vector<int>& targets,
                                  const std::vector<int64_t>& actions);
  /// Throws EnvError if it does not exist.
  const Episode& episode(int env) const;
  Episode& episode(int env) { return const_cast<Episode&>(std::as_const(*this).episode(env)); }
  /// Selects the episodes of the next observation, in this order; none means all of them.
  ObservationSizes prepare(const std::vector<int>& envs = {});
  /// Sizes of the prepared observation; of all episodes if anything has happened since.
  ObservationSizes prepared();
  /// The arrays must have the sizes of `prepared()`.
  void observe(const ObservationArrays& arrays);
  /// mask: [B, S + 1] with stop last; locations: [B, S, max_locations].
  void masks(bool* substitutions, bool* locations);

 private:
  EnvOptions options_;
  Library library_;
  CostModel cost_;
  Workers workers_;
  std::vector<std::unique_ptr<RewriteState>> originals_;  // for each graph, one per thread
  std::vector<Episode> episodes_;
  std::vector<ObservedEpisode> observed_;
  bool is_prepared_ = false;
};

}  // namespace rlopt
