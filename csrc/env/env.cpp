#include "env/env.h"

#include <algorithm>
#include <map>

namespace rlopt {

namespace {

Action action_of(const std::vector<Candidate>& members) {
  Action action;
  action.substitution = members.front().substitution;
  action.location = members.front().location;
  for (const Candidate& member : members) {
    const Evaluation& evaluation = member.evaluation();
    action.members.push_back(member.located->match);
    action.delta += evaluation.delta;
    action.hash_delta += evaluation.hash_delta;
    action.num_added += evaluation.num_added;
    action.num_removed += evaluation.num_removed;
  }
  return action;
}

}  // namespace

void Episode::reset(const RewriteState& original, const Start& start) {
  state_ = std::make_unique<RewriteState>(original);
  initial_ = original.metrics();
  steps_.clear();
  visited_.clear();
  for (size_t i = 0; i < start.prefix.size(); ++i) {
    const Step& step = start.prefix[i];
    if (!take(step.substitution, step.location)) {
      is_done_ = true;
      throw EnvError("step " + std::to_string(i + 1) + " of the start does not apply");
    }
  }
  walk(start.random_steps, start.seed);
  state_->evaluate();
  outcome_ = {};
  outcome_.initial_us = initial_.time_us;
  outcome_.best_us = outcome_.cost_before_us = state_->cost_us();
  visited_.insert(state_->hash());
  is_done_ = false;
  note_state();
}

void Episode::copy_from(const Episode& other) {
  if (other.state_ == nullptr) throw EnvError("reset has to come before the first copy");
  if (&other == this) return;
  state_ = std::make_unique<RewriteState>(*other.state_);
  initial_ = other.initial_;
  steps_ = other.steps_;
  visited_ = other.visited_;
  outcome_ = other.outcome_;
  is_done_ = other.is_done_;
  has_table_ = false;
}

const RewriteState& Episode::state() const {
  if (state_ == nullptr) throw EnvError("reset has to come before anything else of an episode");
  return *state_;
}

void Episode::walk(int count, uint64_t seed) {
  for (int i = 0; i < count; ++i) {
    state_->evaluate();
    const std::vector<Candidate> candidates = state_->candidates();
    if (candidates.empty()) return;
    const uint64_t number = hash_mix(seed, static_cast<uint64_t>(i));
    const Candidate& chosen = candidates[number % candidates.size()];
    take(chosen.substitution, chosen.location);
  }
}

bool Episode::take(int substitution, int location) {
  if (substitution < 0 || substitution >= static_cast<int>(library_->substitutions().size())) return false;
  if (location < 0 || at(location) >= state_->matches().of(substitution).size()) return false;
  if (!state_->step(substitution, location)) return false;
  steps_.push_back({substitution, location});
  return true;
}

/// Members of one class do not touch each other, so each still matches, perhaps at another location.
void Episode::take_all(const std::vector<MatchPtr>& matches) {
  for (const MatchPtr& match : matches) {
    const auto location = state_->matches().of(match->substitution).find(*match);
    if (!location || !take(match->substitution, static_cast<int>(*location))) {
      throw EnvError("a member of a symmetry class was changed by another");
    }
  }
}

/// Updates the outcome from the state.
void Episode::note_state() {
  outcome_.cost_after_us = state_->cost_us();
  outcome_.best_us = std::min(outcome_.best_us, outcome_.cost_after_us);
  outcome_.metrics = state_->metrics();
  has_table_ = false;
  bool has_candidates = false;
  for (int i = 0; i < static_cast<int>(library_->substitutions().size()) && !has_candidates; ++i) {
    if (!state_->is_allowed(i)) continue;
    const MatchList& list = state_->matches().of(i);
    for (size_t k = 0; k < list.size() && !has_candidates; ++k) {
      has_candidates = list[k].evaluation != nullptr && list[k].evaluation->is_legal;
    }
  }
  outcome_.terminated = outcome_.terminated || !has_candidates;
  outcome_.truncated = outcome_.steps >= options_->max_steps && !outcome_.terminated;
  is_done_ = outcome_.terminated || outcome_.truncated;
}

StepOutcome Episode::step(int64_t action) {
  if (state_ == nullptr) throw EnvError("reset has to come before the first step");
  if (is_done_) return outcome_;
  const std::vector<Action>& actions = table();
  const auto count = static_cast<int64_t>(actions.size());
  outcome_.cost_before_us = state_->cost_us();
  outcome_.is_illegal = action < 0 || action > count;
  outcome_.is_visited = false;
  ++outcome_.steps;
  if (action == count) {
    outcome_.terminated = true;
  } else if (!outcome_.is_illegal) {
    const std::vector<MatchPtr> members = actions[at(action)].members;
    go_on(members);
  }
  note_state();
  return outcome_;
}

void Episode::go_on(const std::vector<MatchPtr>& matches) {
  take_all(matches);
  state_->evaluate();
  outcome_.is_visited = !visited_.insert(state_->hash()).second;
}

const Action& Episode::action_at(int64_t action) {
  const std::vector<Action>& actions = table();
  if (action < 0 || action >= static_cast<int64_t>(actions.size())) {
    throw EnvError("the episode has " + std::to_string(actions.size()) + " actions, not one numbered " +
                   std::to_string(action));
  }
  return actions[at(action)];
}

/// Uses the parent's table: a copy would have to rebuild it for a single action.
StepOutcome Episode::branch_from(Episode& parent, int64_t action) {
  const Action& taken = parent.action_at(action);
  copy_from(parent);
  if (is_done_) return outcome_;
  outcome_.cost_before_us = state_->cost_us();
  outcome_.is_illegal = false;
  ++outcome_.steps;
  go_on(taken.members);
  note_state();
  return outcome_;
}

const std::vector<Action>& Episode::table() {
  if (has_table_) return table_;
  table_.clear();
  const std::vector<Candidate> candidates = state().candidates();
  for (const Candidate& candidate : candidates) table_.push_back(action_of({candidate}));
  if (options_->has_macros) {
    std::map<std::pair<int, uint64_t>, std::vector<Candidate>> classes;
    for (const Candidate& candidate : candidates) {
      classes[{candidate.substitution, candidate.evaluation().class_hash}].push_back(candidate);
    }
    std::vector<Action> macros;
    for (const auto& [key, alike] : classes) {
      if (alike.size() < 2) continue;
      const std::vector<Candidate> members = independent(alike);
      if (members.size() > 1) macros.push_back(action_of(members));
    }
    std::sort(macros.begin(), macros.end(), [](const Action& a, const Action& b) {
      return std::pair(a.substitution, a.location) < std::pair(b.substitution, b.location);
    });
    std::move(macros.begin(), macros.end(), std::back_inserter(table_));
  }
  for (Action& action : table_) action.is_visited = visited_.contains(state_->hash() + action.hash_delta);
  has_table_ = true;
  return table_;
}

int64_t Episode::find(int substitution, int location) const {
  for (size_t i = 0; i < table_.size() && has_table_; ++i) {
    const Action& action = table_[i];
    if (action.substitution == substitution && action.location == location && !action.is_macro()) {
      return static_cast<int64_t>(i);
    }
  }
  return -1;
}

ObservedEpisode Episode::observed() {
  if (state_ == nullptr) throw EnvError("reset has to come before the first observation");
  ObservedEpisode result;
  result.state = state_.get();
  result.table = &table();
  result.initial = initial_;
  result.best_us = outcome_.best_us;
  result.steps_left = 1.0 - static_cast<double>(outcome_.steps) / std::max(1, options_->max_steps);
  return result;
}

VecRewriteEnv::VecRewriteEnv(std::vector<Graph> graphs, Library library, CostModel cost,
                             const EnvOptions& options)
    : options_(options),
      library_(std::move(library)),
      cost_(std::move(cost)),
      workers_(std::min(options.num_threads, options.num_envs)),  // one thread steps each episode
      originals_(graphs.size() * at(workers_.num_threads())) {
  if (graphs.empty()) throw EnvError("an environment needs at least one graph");
  if (options.num_envs < 1 || options.max_steps < 1 || options.max_locations < 1) {
    throw EnvError("num_envs, max_steps and max_locations must be at least 1");
  }
  const int num_threads = workers_.num_threads();
  workers_.run(static_cast<int>(originals_.size()), [&](int i) {
    const Graph& graph = graphs[at(i / num_threads)];
    originals_[at(i)] = std::make_unique<RewriteState>(num_threads > 1 ? graph.unshared() : graph, library_,
                                                       cost_, options_.exact_only);
    originals_[at(i)]->evaluate();
  });
  for (int i = 0; i < options.num_envs; ++i) episodes_.emplace_back(options_, library_);
}

void VecRewriteEnv::reset(const std::vector<int>& envs, const std::vector<Start>& starts) {
  if (envs.size() != starts.size()) throw EnvError("one start for each episode that begins");
  std::vector<const Start*> start_of(at(num_envs()), nullptr);
  for (size_t i = 0; i < envs.size(); ++i) {
    if (envs[i] < 0 || envs[i] >= num_envs() || start_of[at(envs[i])] != nullptr) {
      throw EnvError("episodes to begin must be different numbers below " + std::to_string(num_envs()));
    }
    start_of[at(envs[i])] = &starts[i];
    if (starts[i].graph < 0 || starts[i].graph >= num_graphs()) {
      throw EnvError("the environment has " + std::to_string(num_graphs()) + " graphs, not one numbered " +
                     std::to_string(starts[i].graph));
    }
  }
  is_prepared_ = false;
  const int num_threads = workers_.num_threads();
  workers_.run(num_envs(), [&](int i) {
    const Start* start = start_of[at(i)];
    if (start == nullptr) return;
    episodes_[at(i)].reset(*originals_[at(start->graph * num_threads + i % num_threads)], *start);
  });
}

const Episode& VecRewriteEnv::episode(int env) const {
  if (env < 0 || env >= num_envs()) {
    throw EnvError("no episode " + std::to_string(env) + " of " + std::to_string(num_envs()));
  }
  return episodes_[at(env)];
}

void VecRewriteEnv::copy(int source, int target) {
  if (source < 0 || source >= num_envs() || target < 0 || target >= num_envs()) {
    throw EnvError("episodes to copy must be numbers below " + std::to_string(num_envs()));
  }
  is_prepared_ = false;
  episodes_[at(target)].copy_from(episodes_[at(source)]);
}

std::vector<StepOutcome> VecRewriteEnv::branch(const std::vector<int>& sources,
                                               const std::vector<int>& targets,
                                               const std::vector<int64_t>& actions) {
  if (sources.size() != targets.size() || sources.size() != actions.size()) {
    throw EnvError("one source and one action for each target");
  }
  std::vector<bool> is_taken(at(num_envs()), false);
  const auto claim = [&](const std::vector<int>& envs, bool is_target) {
    for (const int env : envs) {
      static_cast<void>(episode(env).state());
      if (is_target && is_taken[at(env)]) throw EnvError("a target is named twice, or is a source");
      is_taken[at(env)] = true;
    }
  };
  claim(sources, false);
  claim(targets, true);
  for (size_t i = 0; i < sources.size(); ++i) {
    static_cast<void>(episodes_[at(sources[i])].action_at(actions[i]));  // throws before anything changes
  }
  is_prepared_ = false;
  std::vector<StepOutcome> outcomes;
  for (size_t i = 0; i < targets.size(); ++i) {
    outcomes.push_back(episodes_[at(targets[i])].branch_from(episodes_[at(sources[i])], actions[i]));
  }
  return outcomes;
}

std::vector<StepOutcome> VecRewriteEnv::step(const std::vector<int64_t>& actions) {
  if (actions.size() != at(num_envs())) throw EnvError("one action for each episode");
  is_prepared_ = false;
  std::vector<StepOutcome> outcomes(actions.size());
  workers_.run(num_envs(), [&](int i) { outcomes[at(i)] = episodes_[at(i)].step(actions[at(i)]); });
  return outcomes;
}

namespace {

void count(ObservationSizes& sizes, const ObservedEpisode& episode) {
  ++sizes.episodes;
  sizes.nodes += episode.order.size();
  sizes.edges += episode.num_edges;
  sizes.candidates += episode.table->size();
  sizes.matched += episode.num_matched;
}

}  // namespace

ObservationSizes VecRewriteEnv::prepare(const std::vector<int>& envs) {
  std::vector<bool> is_named(at(num_envs()), false);  // two threads must not observe the same episode
  for (const int env : envs) {
    if (env < 0 || env >= num_envs() || is_named[at(env)]) {
      throw EnvError("episodes to observe must be different numbers below " + std::to_string(num_envs()));
    }
    is_named[at(env)] = true;
  }
  const int number = envs.empty() ? num_envs() : static_cast<int>(envs.size());
  observed_.assign(at(number), {});
  workers_.run(number, [&](int i) {
    observed_[at(i)] = episodes_[envs.empty() ? at(i) : at(envs[at(i)])].observed();
    measure(observed_[at(i)]);
  });
  is_prepared_ = true;
  return prepared();
}

ObservationSizes VecRewriteEnv::prepared() {
  if (!is_prepared_) return prepare();
  ObservationSizes sizes;
  for (const ObservedEpisode& episode : observed_) count(sizes, episode);
  return sizes;
}

void VecRewriteEnv::observe(const ObservationArrays& arrays) {
  const ObservationSizes all = prepared();
  std::vector<ObservationSizes> firsts(1);
  for (const ObservedEpisode& episode : observed_) {
    firsts.push_back(firsts.back());
    count(firsts.back(), episode);
  }
  workers_.run(static_cast<int>(observed_.size()),
               [&](int i) { write(observed_[at(i)], cost_.device(), firsts[at(i)], all.edges, arrays); });
  arrays.node_offsets[0] = arrays.edge_offsets[0] = arrays.candidate_offsets[0] = 0;
  arrays.matched_offsets[all.candidates] = static_cast<int64_t>(all.matched);
}

void VecRewriteEnv::masks(bool* substitutions, bool* locations) {
  const size_t count = library_.substitutions().size(), width = at(options_.max_locations);
  workers_.run(num_envs(), [&](int env) {
    bool* one = substitutions + at(env) * (count + 1);
    bool* places = locations + at(env) * count * width;
    std::fill(one, one + count, false);
    std::fill(places, places + count * width, false);
    one[count] = true;
    episodes_[at(env)].state().for_each_candidate([&](const Candidate& candidate) {
      if (at(candidate.location) >= width) return;
      one[candidate.substitution] = true;
      places[at(candidate.substitution) * width + at(candidate.location)] = true;
    });
  });
}

}  // namespace rlopt
