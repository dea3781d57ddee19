#include "search/tree.h"

#include <algorithm>
#include <limits>

namespace rlopt {

namespace {

constexpr int kMinMaxLength = 1000;
constexpr int kMaxLengthPerOperator = 2;  // each is normalised, then fused or merged

}  // namespace

SearchTree::SearchTree(const Graph& graph, const Library& library, const CostModel& cost,
                       const SearchOptions& options, const std::function<bool()>& interrupted)
    : library_(library),
      cost_(cost),
      options_(options),
      interrupted_(interrupted),
      slice_end_ms_(std::numeric_limits<double>::infinity()),
      max_length_(options.max_length > 0
                      ? options.max_length
                      : std::max(kMinMaxLength, kMaxLengthPerOperator * graph.num_operators())) {
  root_ = std::make_shared<RewriteState>(graph, library, cost, options.exact_only);
  nodes_.push_back({root_->cost_us(), -1, 0, {}});
  progress_.push_back({0, clock_.elapsed_ms() / 1000, root_->cost_us()});
}

double SearchTree::fraction_used() const {
  double used = options_.budget_ms > 0 ? clock_.elapsed_ms() / options_.budget_ms : 1;
  if (options_.budget_steps > 0) {
    used = std::max(used, static_cast<double>(expansions_) / static_cast<double>(options_.budget_steps));
  }
  return std::min(used, 1.0);
}

bool SearchTree::has_room(int node, int num_steps) {
  const bool has = depth(node) + num_steps <= max_length_;
  is_cut_ = is_cut_ || !has;
  return has;
}

void SearchTree::set_slice(double ms) { slice_end_ms_ = clock_.elapsed_ms() + ms; }

bool SearchTree::out_of_budget() {
  if (stopped_) return true;
  stopped_ = fraction_used() >= 1 || (interrupted_ && interrupted_());
  return stopped_ || clock_.elapsed_ms() >= slice_end_ms_;
}

bool SearchTree::out_of_patience() {
  stopped_ = stopped_ || !has_patience();
  return stopped_;
}

void SearchTree::hold(int node, std::shared_ptr<RewriteState> state) {
  if (!held_.emplace(node, std::move(state)).second) return;
  held_order_.push_back(node);
  if (held_order_.size() <= kMaxHeld) return;
  held_.erase(held_order_.front());
  held_order_.pop_front();
}

std::shared_ptr<RewriteState> SearchTree::made(int node) {
  std::vector<int> path;
  int from = node;
  for (; from != kRoot && !held_.contains(from); from = nodes_[at(from)].parent) {
    path.push_back(from);
  }
  std::shared_ptr<RewriteState> state = from == kRoot ? root_ : held_.at(from);
  if (!path.empty()) {
    state = std::make_shared<RewriteState>(*state);
    std::reverse(path.begin(), path.end());
    for (const int each : path) {
      const Step& step = nodes_[at(each)].step;
      if (!state->step(step.substitution, step.location))
        throw Error("a step of a search cannot be repeated");
    }
    hold(node, state);
  }
  return state;
}

std::shared_ptr<RewriteState> SearchTree::state(int node) {
  std::shared_ptr<RewriteState> state = made(node);
  const int64_t before = state->num_evaluations();
  // If only steps are counted, an expansion in progress may finish.
  state->evaluate(
      [this] { return clock_.elapsed_ms() >= options_.budget_ms || (interrupted_ && interrupted_()); });
  candidates_ += state->num_evaluations() - before;
  return state;
}

std::vector<Offer> SearchTree::expand(int node) {
  count_expansion(0);
  const std::shared_ptr<RewriteState> from = state(node);
  std::vector<Offer> offers;
  from->for_each_candidate([&](const Candidate& candidate) {
    const Evaluation& evaluation = candidate.evaluation();
    offers.push_back({{candidate.substitution, candidate.location},
                      cost_us(node) + evaluation.delta.time_us,
                      from->hash() + evaluation.hash_delta});
  });
  return offers;
}

int SearchTree::add(int parent, Step step, double cost) {
  nodes_.push_back({cost, parent, depth(parent) + 1, step});
  const int node = static_cast<int>(nodes_.size()) - 1;
  note_best(node);
  return node;
}

void SearchTree::note_best(int node) {
  if (cost_us(node) >= best_us()) return;
  best_ = node;
  renew_patience();
  progress_.push_back({expansions_, clock_.elapsed_ms() / 1000, cost_us(node)});
}

Follower::~Follower() {
  // The best state will be requested again: by searches that continue from it, and at the end.
  if (node_ == tree_.best()) tree_.hold(node_, state_);
}

void Follower::restart(int node) {
  node_ = node;
  state_ = std::make_shared<RewriteState>(*tree_.state(node));
  num_counted_ = state_->num_evaluations();
}

void Follower::expand() {
  state_->evaluate([this] { return tree_.out_of_budget(); });
  tree_.count_expansion(state_->num_evaluations() - num_counted_);
  num_counted_ = state_->num_evaluations();
}

bool Follower::step(Step step) {
  if (!state_->step(step.substitution, step.location)) return false;
  node_ = tree_.add(node_, step, state_->cost_us());
  return true;
}

SearchResult SearchTree::result() {
  SearchResult result;
  for (int i = best_; i != kRoot; i = nodes_[at(i)].parent) {
    result.steps.push_back(nodes_[at(i)].step);
    result.costs_us.push_back(cost_us(i));
  }
  std::reverse(result.steps.begin(), result.steps.end());
  std::reverse(result.costs_us.begin(), result.costs_us.end());
  result.graph = made(best_)->graph();
  result.cost_before_us = cost_us(kRoot);
  result.cost_after_us = best_us();
  result.expansions = expansions_;
  result.candidates = candidates_;
  result.exhausted = !stopped_ && !is_cut_;
  result.seconds = clock_.elapsed_ms() / 1000;
  result.progress = std::move(progress_);
  return result;
}

}  // namespace rlopt
