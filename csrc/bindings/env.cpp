// Environments: many episodes step at once and write observations into the caller's arrays.
#include <pybind11/numpy.h>

#include "bindings/bind.h"

namespace rlopt {

namespace {

using Env = Exclusive<VecRewriteEnv>;
using State = Exclusive<RewriteState>;

/// Columns of the outcome array of VecRewriteEnv.step.
const std::vector<std::string> kOutcomeColumns{"cost_before_us", "cost_after_us", "best_us",    "initial_us",
                                               "flops",          "bytes",         "launches",   "num_steps",
                                               "terminated",     "truncated",     "is_illegal", "is_visited"};

py::array_t<double> outcomes_to_array(const std::vector<StepOutcome>& outcomes) {
  py::array_t<double> array({outcomes.size(), kOutcomeColumns.size()});
  double* at = array.mutable_data();
  for (const StepOutcome& each : outcomes) {
    for (const double value :
         {each.cost_before_us, each.cost_after_us, each.best_us, each.initial_us, each.metrics.flops,
          each.metrics.bytes, each.metrics.launches, static_cast<double>(each.steps),
          static_cast<double>(each.terminated), static_cast<double>(each.truncated),
          static_cast<double>(each.is_illegal), static_cast<double>(each.is_visited)}) {
      *at++ = value;
    }
  }
  return array;
}

template <class T>
T* data_of(const py::dict& arrays, const char* name, size_t size) {
  if (!arrays.contains(name)) raise_python("EnvError", std::string("no array '") + name + "'");
  const py::object given = arrays[name];
  if (!py::isinstance<py::array_t<T, py::array::c_style>>(given)) {
    raise_python("EnvError", std::string("array '") + name + "' has another dtype, or is not contiguous");
  }
  auto array = py::reinterpret_borrow<py::array>(given);
  if (static_cast<size_t>(array.size()) != size) {
    raise_python("EnvError", std::string("array '") + name + "' has " + std::to_string(array.size()) +
                                 " items where " + std::to_string(size) + " are written");
  }
  if (!array.writeable()) raise_python("EnvError", std::string("array '") + name + "' is read-only");
  return static_cast<T*>(array.mutable_data());
}

py::dict sizes_to_dict(const ObservationSizes& sizes) {
  py::dict result;
  result["episodes"] = sizes.episodes;
  result["nodes"] = sizes.nodes;
  result["edges"] = sizes.edges;
  result["candidates"] = sizes.candidates;
  result["matched"] = sizes.matched;
  return result;
}

ObservationArrays arrays_of(const py::dict& arrays, const ObservationSizes& sizes) {
  const auto width = [](const char* array) { return static_cast<size_t>(num_columns(array)); };
  return {data_of<int64_t>(arrays, "node_offsets", sizes.episodes + 1),
          data_of<int64_t>(arrays, "edge_offsets", sizes.episodes + 1),
          data_of<int64_t>(arrays, "candidate_offsets", sizes.episodes + 1),
          data_of<int64_t>(arrays, "ops", sizes.nodes),
          data_of<float>(arrays, "nodes", sizes.nodes * width("node")),
          data_of<int64_t>(arrays, "edge_index", 2 * sizes.edges),
          data_of<float>(arrays, "edges", sizes.edges * width("edge")),
          data_of<float>(arrays, "globals", sizes.episodes * width("global")),
          data_of<int64_t>(arrays, "substitutions", sizes.candidates),
          data_of<int64_t>(arrays, "locations", sizes.candidates),
          data_of<float>(arrays, "candidates", sizes.candidates * width("candidate")),
          data_of<int64_t>(arrays, "matched_offsets", sizes.candidates + 1),
          data_of<int64_t>(arrays, "matched", sizes.matched)};
}

void observe(Env& env, const py::dict& arrays) {
  env([&](VecRewriteEnv& each) {
    const ObservationSizes sizes = each.prepared();
    std::optional<ObservationArrays> out;
    {
      const py::gil_scoped_acquire gil;
      out = arrays_of(arrays, sizes);
    }
    each.observe(*out);
  });
}

void masks(Env& env, py::array_t<bool, py::array::c_style>& substitutions,
           py::array_t<bool, py::array::c_style>& locations) {
  const py::ssize_t num_substitutions = substitutions.size(), num_locations = locations.size();
  bool *one = substitutions.mutable_data(), *other = locations.mutable_data();
  env([&](VecRewriteEnv& each) {
    const auto count = static_cast<py::ssize_t>(each.library().substitutions().size());
    if (num_substitutions != each.num_envs() * (count + 1) ||
        num_locations != each.num_envs() * count * each.options().max_locations) {
      throw EnvError("masks have the shapes [B, S + 1] and [B, S, max_locations]");
    }
    each.masks(one, other);
  });
}

Start start_from_python(const Library& library, const py::dict& given) {
  Start start;
  for (const auto& [key, value] : given) {
    const auto name = key.cast<std::string>();
    if (name == "graph") {
      start.graph = value.cast<int>();
    } else if (name == "prefix") {
      start.prefix = steps_from_python(library, value, "EnvError");
    } else if (name == "random_steps") {
      start.random_steps = value.cast<int>();
    } else if (name == "seed") {
      start.seed = value.cast<uint64_t>();
    } else {
      raise_python("EnvError", "a start has graph, prefix, random_steps and seed, not '" + name + "'");
    }
  }
  return start;
}

void reset(Env& env, const std::vector<int>& envs, const py::sequence& starts) {
  env([&](VecRewriteEnv& each) {
    std::vector<Start> parsed;
    {
      const py::gil_scoped_acquire gil;
      for (const auto& start : starts)
        parsed.push_back(start_from_python(each.library(), start.cast<py::dict>()));
    }
    each.reset(envs, parsed);
  });
}

py::array_t<double> step(Env& env, const std::vector<int64_t>& actions) {
  return outcomes_to_array(env([&](VecRewriteEnv& each) { return each.step(actions); }));
}

py::array_t<double> last_outcomes(Env& env) {
  return outcomes_to_array(env([](VecRewriteEnv& each) {
    std::vector<StepOutcome> outcomes;
    for (int i = 0; i < each.num_envs(); ++i) outcomes.push_back(each.episode(i).outcome());
    return outcomes;
  }));
}

py::array_t<double> branch(Env& env, const std::vector<int>& sources, const std::vector<int>& targets,
                           const std::vector<int64_t>& actions) {
  return outcomes_to_array(env([&](VecRewriteEnv& each) { return each.branch(sources, targets, actions); }));
}

std::vector<uint64_t> hashes_after(Env& env, int index) {
  return env([&](VecRewriteEnv& each) {
    Episode& episode = each.episode(index);
    std::vector<uint64_t> hashes;
    for (const Action& action : episode.table()) hashes.push_back(episode.state().hash() + action.hash_delta);
    return hashes;
  });
}

/// Call only while nobody else steps: candidates point into the state.
py::list candidates_to_python(State& state) {
  return state([](RewriteState& each) {
    each.evaluate();
    const py::gil_scoped_acquire gil;
    py::list result;
    for (const Candidate& candidate : each.candidates()) {
      py::dict entry;
      entry["substitution"] = candidate.substitution;
      entry["location"] = candidate.location;
      entry["nodes"] = candidate.match().nodes;
      entry["delta"] = metrics_to_python(candidate.evaluation().delta);
      entry["hash"] = each.hash() + candidate.evaluation().hash_delta;
      result.append(entry);
    }
    return result;
  });
}

void bind_state(py::module_& m) {
  py::class_<State>(m, "RewriteState", "A graph with its matches, prices and candidates, kept up to date.")
      .def(py::init<Graph, const Library&, const CostModel&, bool>(), py::arg("graph"), py::arg("library"),
           py::arg("cost"), py::arg("exact_only") = false, py::keep_alive<1, 3>(), py::keep_alive<1, 4>())
      .def_property_readonly(
          "graph",
          [](State& state) { return state([](const RewriteState& each) { return Graph(each.graph()); }); })
      .def_property_readonly("metrics",
                             [](State& state) {
                               return metrics_to_python(state(
                                   [](const RewriteState& each) { return NodeMetrics(each.metrics()); }));
                             })
      .def_property_readonly(
          "hash", [](State& state) { return state([](const RewriteState& each) { return each.hash(); }); },
          "Of the graph: equal after the same steps in another order.")
      .def_property_readonly(
          "num_evaluations",
          [](State& state) { return state([](const RewriteState& each) { return each.num_evaluations(); }); })
      .def(
          "step",
          [](State& state, int substitution, int location) {
            return state([&](RewriteState& each) { return each.step(substitution, location); });
          },
          py::arg("substitution"), py::arg("location"),
          "Applies a match, by index in the library; False where it is refused.")
      .def("candidates", &candidates_to_python,
           "The legal candidates: dicts with substitution, location, nodes, delta and hash afterwards.");
}

}  // namespace

void bind_env(py::module_& m) {
  bind_state(m);
  m.def(
      "feature_columns",
      [] {
        py::list result;
        for (const FeatureColumn& column : feature_columns())
          result.append(py::make_tuple(column.array, column.name));
        return result;
      },
      "(array, column name) of every feature, in order.");
  m.attr("OUTCOME_COLUMNS") = py::cast(kOutcomeColumns);
  py::class_<Env>(m, "VecRewriteEnv", "Many episodes of rewriting, stepped by several threads.")
      .def(py::init([](const std::vector<Graph>& graphs, const Library& library, const CostModel& cost,
                       int num_envs, int num_threads, int max_steps, int max_locations, bool has_macros,
                       bool exact_only) {
             const EnvOptions options{num_envs,      num_threads, max_steps,
                                      max_locations, has_macros,  exact_only};
             const py::gil_scoped_release release;
             return std::make_unique<Env>(graphs, library, cost, options);
           }),
           py::arg("graphs"), py::arg("library"), py::arg("cost"), py::kw_only(), py::arg("num_envs") = 1,
           py::arg("num_threads") = 1, py::arg("max_steps") = 100, py::arg("max_locations") = 200,
           py::arg("has_macros") = true, py::arg("exact_only") = false)
      .def_property_readonly(
          "num_envs", [](Env& env) { return env([](const VecRewriteEnv& each) { return each.num_envs(); }); })
      .def_property_readonly(
          "num_graphs",
          [](Env& env) { return env([](const VecRewriteEnv& each) { return each.num_graphs(); }); })
      .def(
          "reset", &reset, py::arg("envs"), py::arg("starts"),
          "Begins episodes anew; a start is a dict with graph, prefix, random_steps and seed, each optional.")
      .def(
          "copy",
          [](Env& env, int source, int target) {
            env([&](VecRewriteEnv& each) { each.copy(source, target); });
          },
          py::arg("source"), py::arg("target"), "Makes one episode a copy of another.")
      .def("step", &step, py::arg("actions"),
           "One action per episode: a row of its candidates, their number for stop. [B, "
           "len(OUTCOME_COLUMNS)].")
      .def("branch", &branch, py::arg("sources"), py::arg("targets"), py::arg("actions"),
           "Makes each target a copy of its source and takes one action there, stop excepted: rows of\n"
           "outcomes, one for each target.")
      .def("hashes_after", &hashes_after, py::arg("env"),
           "Of the graphs that the actions of an episode lead to, stop excepted; see `hash`.")
      .def("outcomes", &last_outcomes, "The rows of the last step or reset.")
      .def(
          "find",
          [](Env& env, int index, int substitution, int location) {
            return env([&](VecRewriteEnv& each) {
              each.episode(index).table();
              return each.episode(index).find(substitution, location);
            });
          },
          py::arg("env"), py::arg("substitution"), py::arg("location"),
          "The action of a (substitution, location), -1 where it is not legal.")
      .def(
          "sizes",
          [](Env& env, const std::vector<int>& envs) {
            return sizes_to_dict(env([&](VecRewriteEnv& each) { return each.prepare(envs); }));
          },
          py::arg("envs") = std::vector<int>{},
          "Rows of the next observation: episodes, nodes, edges, candidates, matched. It shows these\n"
          "episodes, all of them for none.")
      .def("observe", &observe, py::arg("arrays"),
           "Writes the observation into arrays of exactly those sizes. After anything but `sizes` it is\n"
           "one of all episodes.")
      .def("masks", &masks, py::arg("substitutions").noconvert(), py::arg("locations").noconvert(),
           "Writes what is legal: bool [B, S + 1], stop last, and bool [B, S, max_locations].")
      .def(
          "graph",
          [](Env& env, int index) {
            return env([&](VecRewriteEnv& each) { return Graph(each.episode(index).state().graph()); });
          },
          py::arg("env"))
      .def(
          "hash",
          [](Env& env, int index) {
            return env([&](VecRewriteEnv& each) { return each.episode(index).state().hash(); });
          },
          py::arg("env"), "Of the graph: equal after the same steps in another order.")
      .def(
          "steps",
          [](Env& env, int index) {
            return env([&](VecRewriteEnv& each) {
              const py::gil_scoped_acquire gil;
              return steps_to_python(each.library(), each.episode(index).steps());
            });
          },
          py::arg("env"), "(substitution, location) of all steps from the original graph.");
}

}  // namespace rlopt
