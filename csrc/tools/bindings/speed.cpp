// Timing of the rewriting state.
#include "tools/bindings/bind.h"
#include "tools/speed/steps.h"

namespace rlopt {

void bind_speed(py::module_& m) {
  m.def(
      "time_steps",
      [](const Graph& graph, const Library& library, const CostModel& cost, int num_steps, uint64_t seed) {
        StepTimes times;
        {
          const py::gil_scoped_release release;
          times = time_steps(graph, library, cost, num_steps, seed);
        }
        py::dict result;
        result["first_match_us"] = times.first_match_us;
        result["first_evaluation_us"] = times.first_evaluation_us;
        result["steps_us"] = times.steps_us;
        result["num_evaluations"] = times.num_evaluations;
        return result;
      },
      py::arg("graph"), py::arg("library"), py::arg("cost"), py::arg("num_steps"), py::arg("seed") = 0,
      "Times random steps: first_match_us, first_evaluation_us, steps_us (apply, match, price and evaluate), "
      "num_evaluations.");
}

}  // namespace rlopt
