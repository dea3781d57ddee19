// Timing of the rewriting state.
#include <chrono>
#include <utility>
#include <vector>

#include "search/state.h"
#include "tools/bindings/bind.h"

namespace rlopt {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMaxMisses = 100;  // draws without a legal match before the walk restarts

double us_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

/// Draws a match uniformly without enumerating all of them: substitution, -1 if there is none, and location.
std::pair<int, int> draw(const RewriteState& state, uint64_t number) {
  if (state.matches().size() == 0) return {-1, 0};
  size_t left = number % state.matches().size();
  int substitution = 0;
  while (left >= state.matches().of(substitution).size()) left -= state.matches().of(substitution++).size();
  return {substitution, static_cast<int>(left)};
}

bool is_legal(const RewriteState& state, int substitution, int location) {
  if (substitution < 0) return false;
  const auto& evaluation = state.matches().of(substitution)[at(location)].evaluation;
  return evaluation != nullptr && evaluation->is_legal;
}

/// Takes random legal steps from the graph, restarting if almost none are left; fewer than `num_steps`,
/// possibly none, only if the graph has no legal step.
py::dict time_steps(const Graph& graph, const Library& library, const CostModel& cost, int num_steps,
                    uint64_t seed) {
  double first_match_us = 0;
  double first_evaluation_us = 0;
  std::vector<double> steps_us;
  int64_t num_evaluations = 0;
  without_gil([&] {
    auto begin = Clock::now();
    const MatchSet matches(graph, library);
    first_match_us = us_since(begin);
    RewriteState original(graph, library, cost);
    begin = Clock::now();
    original.evaluate();
    first_evaluation_us = us_since(begin);
    RewriteState state = original;
    for (uint64_t i = 0, misses = 0; static_cast<int>(steps_us.size()) < num_steps; ++i) {
      const auto [substitution, location] = draw(state, hash_mix(seed, i));
      if (!is_legal(state, substitution, location)) {
        if (++misses < kMaxMisses) continue;
        if (steps_us.empty()) break;
        misses = 0;
        state = original;
        continue;
      }
      misses = 0;
      const int64_t before = state.num_evaluations();
      begin = Clock::now();
      state.step(substitution, location);
      state.evaluate();
      steps_us.push_back(us_since(begin));
      num_evaluations += state.num_evaluations() - before;
    }
  });
  py::dict result;
  result["first_match_us"] = first_match_us;
  result["first_evaluation_us"] = first_evaluation_us;
  result["steps_us"] = steps_us;
  result["num_evaluations"] = num_evaluations;
  return result;
}

}  // namespace

void bind_speed(py::module_& m) {
  m.def(
      "time_steps", time_steps, py::arg("graph"), py::arg("library"), py::arg("cost"), py::arg("num_steps"),
      py::arg("seed") = 0,
      "Times random steps: first_match_us, first_evaluation_us, steps_us (apply, match, price and evaluate), "
      "num_evaluations.");
}

}  // namespace rlopt
