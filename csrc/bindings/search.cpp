// Searches.
#include "search/search.h"

#include "bindings/bind.h"

namespace rlopt {

namespace {

py::dict run_search(const Graph& graph, const Library& library, const CostModel& cost,
                    const SearchOptions& options) {
  const SearchResult result = with_signals(
      [&](const auto& interrupted) { return search(graph, library, cost, options, interrupted); });
  py::dict answer;
  answer["graph"] = result.graph;
  answer["steps"] = steps_to_python(library, result.steps);
  answer["costs_us"] = result.costs_us;
  answer["cost_before_us"] = result.cost_before_us;
  answer["cost_after_us"] = result.cost_after_us;
  answer["expansions"] = result.expansions;
  answer["candidates"] = result.candidates;
  answer["exhausted"] = result.exhausted;
  answer["seconds"] = result.seconds;
  py::list progress;
  for (const SearchProgress& each : result.progress) {
    progress.append(py::make_tuple(each.expansions, each.seconds, each.cost_us));
  }
  answer["progress"] = progress;
  return answer;
}

}  // namespace

void bind_search(py::module_& m) {
  m.def(
      "search",
      [](const Graph& graph, const Library& library, const CostModel& cost, const std::string& searcher,
         double budget_ms, int64_t budget_steps, double alpha, int beam_width, int max_length, uint64_t seed,
         bool exact_only, int64_t patience, const py::sequence& first) {
        return run_search(graph, library, cost,
                          {searcher, budget_ms, budget_steps, alpha, beam_width, max_length, seed, exact_only,
                           patience, steps_from_python(library, first, "SearchError")});
      },
      py::arg("graph"), py::arg("library"), py::arg("cost"), py::kw_only(), py::arg("searcher") = "greedy",
      py::arg("budget_ms") = 300.0, py::arg("budget_steps") = 0, py::arg("alpha") = 1.05,
      py::arg("beam_width") = 8, py::arg("max_length") = 0, py::arg("seed") = 0,
      py::arg("exact_only") = false, py::arg("patience") = 0, py::arg("first") = py::list(),
      "Searches for a cheaper graph; a dict with graph, steps [(substitution, location)], costs and "
      "counters.\n"
      "Ctrl-C raises KeyboardInterrupt within 50 ms.");
  m.def(
      "replay",
      [](const Graph& graph, const Library& library, const py::sequence& steps) {
        try {
          return replay(graph, library, steps_from_python(library, steps, "SearchError"));
        } catch (const Error& error) {
          raise_python("SearchError", error.what());
        }
      },
      py::arg("graph"), py::arg("library"), py::arg("steps"),
      "Applies steps in order. Raises SearchError naming the step that no longer applies.");
}

}  // namespace rlopt
