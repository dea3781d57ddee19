#include "tools/verify/verify.h"

#include <algorithm>
#include <map>
#include <set>

#include "tools/verify/compare.h"
#include "tools/verify/contexts.h"

namespace rlopt {

namespace {

constexpr int kMinBindings = 8;      // fewer distinct instances are not conclusive
constexpr int kMaxSteps = 3;         // per substitution and graph: overlapping matches
constexpr int kMaxAttempts = 20000;  // of draw_instances

/// A pattern with little freedom runs out of distinct instances.
bool is_exhausted(int attempts, int found) { return attempts > 4000 && found * 100 < attempts; }

class Verifier {
 public:
  Verifier(const Library& library, int substitution, const VerifyOptions& options)
      : library_(library),
        number_(substitution),
        options_(options),
        random_(hash_mix(options.seed, hash_string(library.substitutions()[at(substitution)].name))) {}

  VerifyResult run() {
    result_.exact_field = true;
    Drawer drawer(library_, number_, random_);
    int attempts = 0;
    while (result_.num_bindings < options_.num_bindings && attempts < options_.max_attempts) {
      if (is_exhausted(++attempts, result_.num_bindings)) break;
      if (options_.interrupted && options_.interrupted()) return {};
      const auto instance = drawer.draw();
      if (!instance || !seen_.insert(instance->graph.hash()).second) continue;
      ++num_drawn_;
      if (!check_instance(*instance)) return std::move(result_);
    }
    finish(attempts);
    return std::move(result_);
  }

 private:
  /// Checks the instance alone and in one other context. False: found a counterexample.
  bool check_instance(const Instance& instance) {
    const int before = num_compared_;
    if (!check_graph(instance.graph, Context::Plain)) return false;
    if (num_compared_ == before) return true;
    ++result_.num_bindings;
    const auto context = static_cast<Context>(1 + next_context_++ % (kNumContexts - 1));
    const auto graph = put_in_context(instance, context, random_);
    return !graph || check_graph(*graph, context);
  }

  bool check_graph(const Graph& graph, Context context) {
    contexts_.insert(context);
    Graph current = graph;
    for (int step = 0; step < kMaxSteps; ++step) {
      const auto next = apply_any(current, step == 0 && context == Context::Plain);
      if (!next) break;
      current = *next;
      rlopt::check_graph(current);  // a graph that breaks an invariant is a bug of ours, in any context
      if (!agree(graph, current, context)) return false;
      if (context != Context::Overlap && context != Context::Chain) break;
    }
    return true;
  }

  /// The graph after the first match that is not refused, starting at a random one.
  std::optional<Graph> apply_any(const Graph& graph, bool counts) {
    const std::vector<Match> matches = find_matches(graph, library_, number_);
    if (matches.empty() && counts) ++result_.num_unmatched;
    const size_t first = matches.empty() ? 0 : static_cast<size_t>(random_.bits() % matches.size());
    for (size_t i = 0; i < matches.size(); ++i) {
      Applied applied = apply_match(graph, library_, matches[(first + i) % matches.size()]);
      if (applied.graph) return std::move(applied.graph);
      if (counts && i == 0) {
        ++result_.num_refused;
        ++refusals_[applied.refusal];
      }
    }
    return std::nullopt;
  }

  bool agree(const Graph& before, const Graph& after, Context context) {
    for (int seed = 0; seed < options_.num_seeds; ++seed) {
      const Comparison comparison =
          compare(before, after, random_.bits(), seed, library_.substitutions()[at(number_)].exact);
      if (!comparison.unevaluated.empty()) {
        ++num_unevaluated_;
        ++refusals_[comparison.unevaluated];
        return true;
      }
      result_.exact_field &= comparison.is_field;
      result_.max_error = std::max(result_.max_error, comparison.error);
      if (comparison.difference.empty()) continue;
      result_.ok = false;
      result_.reason = std::string("different results in context '") + context_name(context) +
                       "': " + comparison.difference;
      result_.counter_example =
          "before:\n" + print_graph(before) + "after:\n" + print_graph(after) + comparison.difference + "\n";
      return false;
    }
    ++num_compared_;
    return true;
  }

  void finish(int attempts) {
    result_.num_contexts = static_cast<int>(contexts_.size());
    for (const Context context : contexts_) result_.contexts.emplace_back(context_name(context));
    result_.ok = result_.num_bindings >= std::min(kMinBindings, options_.num_bindings);
    if (result_.num_bindings == options_.num_bindings) return;
    result_.reason = std::to_string(result_.num_bindings) + " distinct instances of " +
                     std::to_string(options_.num_bindings) + " in " + std::to_string(attempts) +
                     " attempts (" + std::to_string(num_drawn_) + " drawn, " +
                     std::to_string(result_.num_unmatched) + " not matched, " +
                     std::to_string(result_.num_refused) + " refused, " + std::to_string(num_unevaluated_) +
                     " not evaluated)";
    const auto most = std::max_element(refusals_.begin(), refusals_.end(),
                                       [](const auto& a, const auto& b) { return a.second < b.second; });
    if (most != refusals_.end()) result_.reason += "; most often: " + most->first;
  }

  const Library& library_;
  int number_;
  VerifyOptions options_;
  Random random_;
  VerifyResult result_;
  std::set<uint64_t> seen_;
  std::set<Context> contexts_;
  std::map<std::string, int> refusals_;  // and what was not evaluated
  int num_drawn_ = 0;
  int num_compared_ = 0;
  int num_unevaluated_ = 0;
  int next_context_ = 0;
};

}  // namespace

VerifyResult verify(const Library& library, int substitution, const VerifyOptions& options) {
  return Verifier(library, substitution, options).run();
}

std::vector<DrawnInstance> draw_instances(const Library& library, int substitution, int count,
                                          uint64_t seed) {
  const std::string& name = library.substitutions()[at(substitution)].name;
  Random random(hash_mix(seed, hash_string(name)));
  Drawer drawer(library, substitution, random);
  std::set<uint64_t> seen;
  std::vector<DrawnInstance> drawn;
  for (int attempt = 1; attempt <= kMaxAttempts && static_cast<int>(drawn.size()) < count; ++attempt) {
    if (is_exhausted(attempt, static_cast<int>(drawn.size()))) break;
    auto instance = drawer.draw();
    if (!instance || !seen.insert(instance->graph.hash()).second) continue;
    for (Match& match : find_matches(instance->graph, library, substitution)) {
      if (!apply_match(instance->graph, library, match).graph) continue;
      drawn.push_back({std::move(instance->graph), std::move(match)});
      break;
    }
  }
  return drawn;
}

}  // namespace rlopt
