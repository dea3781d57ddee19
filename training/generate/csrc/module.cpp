// The module training.generate._enumerate, the generator's inner loop: worlds, candidate pairs, their graphs,
// derivations.
#include "bindings/bind.h"
#include "enumerate/derive.h"
#include "enumerate/join.h"

namespace rlopt {

namespace {

py::dict world_to_python(const std::string& name) {
  const World& world = find_world(name);
  const ValueNumbers numbers(world);
  py::list inputs;
  for (int i = 0; i < numbers.num_inputs(); ++i) {
    const InputSort& sort = world.sorts[static_cast<size_t>(numbers.sort_of(i))];
    py::dict input;
    input["name"] = numbers.name(i);
    input["sort"] = numbers.sort_of(i);
    input["is_constant"] = sort.is_constant();
    input["number"] = sort.fill == InputSort::Fill::Number ? py::object(py::float_(sort.number)) : py::none();
    input["shape"] = sort.shapes[0];
    inputs.append(input);
  }
  py::list letters;
  for (const Letter& each : world.letters) {
    py::dict letter;
    letter["name"] = each.name;
    letter["op"] = op_info(each.op).name;
    letter["arity"] = each.arity;
    letter["num_outputs"] = each.num_outputs;
    letters.append(letter);
  }
  py::dict result;
  result["inputs"] = inputs;
  result["letters"] = letters;
  return result;
}

/// Operators as [letter, operand, operand or -1]; a term without operators has one entry [-1, input, -1].
py::list term_to_python(const Term& term) {
  py::list ops;
  if (term.num_ops == 0) ops.append(std::vector<int>{-1, term.input, -1});
  for (int i = 0; i < term.num_ops; ++i) {
    const TermOp& op = term.ops[static_cast<size_t>(i)];
    ops.append(std::vector<int>{op.letter, op.ins[0], op.ins[1]});
  }
  return ops;
}

Term term_from_python(const World& world, const std::vector<std::vector<int>>& ops) {
  if (ops.empty() || ops.size() > kMaxTermOps) throw TypeError("a term has 1 to 4 operators");
  Term term;
  const ValueNumbers numbers(world);
  for (size_t i = 0; i < ops.size(); ++i) {
    if (ops[i].size() != 3) throw TypeError("an operator of a term is [letter, operand, operand]");
    const int limit = numbers.output(static_cast<int>(i), 0);
    if (ops[i][0] < 0) {
      if (i > 0 || ops[i][1] < 0 || ops[i][1] >= numbers.num_inputs())
        throw IndexError("a term without operators is an input of its world");
      term.input = static_cast<int8_t>(ops[i][1]);
      return term;
    }
    if (ops[i][0] >= static_cast<int>(world.letters.size()) || ops[i][1] < 0 || ops[i][1] >= limit ||
        ops[i][2] >= limit || (ops[i][2] < 0 && world.letters[static_cast<size_t>(ops[i][0])].arity > 1)) {
      throw IndexError("an operator of a term reads what is not there");
    }
    term.ops[i] = {static_cast<uint8_t>(ops[i][0]),
                   {static_cast<int8_t>(ops[i][1]), static_cast<int8_t>(ops[i][2])}};
    ++term.num_ops;
  }
  return term;
}

py::dict pairs_to_python(const std::string& world, int depth, uint64_t seed, int slice, int num_slices) {
  EnumerateOptions options;
  options.depth = depth;
  options.seed = seed;
  options.slice = slice;
  options.num_slices = num_slices;
  JoinResult result;
  SignalPoll poll;
  {
    const py::gil_scoped_release release;
    result = find_pairs(find_world(world), options, [&poll] { return poll(); });
  }
  if (poll.raised()) throw py::error_already_set();
  py::list pairs;
  for (const CandidatePair& pair : result.pairs) {
    py::dict each;
    each["left"] = term_to_python(pair.left);
    each["right"] = term_to_python(pair.right);
    each["left_outputs"] = pair.left_outputs;
    each["right_outputs"] = pair.right_outputs;
    pairs.append(each);
  }
  py::dict counts;
  counts["graphs"] = result.counts.num_graphs;
  counts["fingerprints"] = result.counts.num_fingerprints;
  counts["groups"] = result.counts.num_groups;
  counts["pairs"] = result.counts.num_pairs;
  counts["renamed"] = result.counts.num_renamed;
  counts["common"] = result.counts.num_common;
  counts["special"] = result.counts.num_special;
  counts["distinct"] = result.counts.num_distinct;
  counts["refuted"] = result.counts.num_refuted;
  py::dict answer;
  answer["counts"] = counts;
  answer["pairs"] = pairs;
  return answer;
}

Graph graph_of_term(const std::string& world_name, const std::vector<std::vector<int>>& ops,
                    const std::vector<int>& outputs, const std::vector<Ints>& shapes,
                    const std::vector<bool>& statics, int trial) {
  const World& world = find_world(world_name);
  const ValueNumbers numbers(world);
  if (trial < 0 || trial >= world.num_trials) throw TypeError("no such trial");
  const std::vector<Ints> sizes = shapes.empty() ? trial_shapes(world, trial) : shapes;
  if (sizes.size() != world.sorts.size()) throw TypeError("shapes: one for each sort of inputs");
  if (!statics.empty() && static_cast<int>(statics.size()) != numbers.num_inputs())
    throw TypeError("statics: one for each input");
  return term_graph(world, numbers, term_from_python(world, ops), outputs, sizes, statics);
}

py::object derive_steps(const Graph& before, const Graph& after, const Library& library, int max_steps,
                        int max_graphs, const CostModel* cost) {
  DeriveOptions options;
  options.max_steps = max_steps;
  options.max_graphs = max_graphs;
  options.cost = cost;
  std::vector<Step> steps;
  {
    const py::gil_scoped_release release;
    steps = derive(before, after, library, options);
  }
  if (steps.empty()) return py::none();
  return steps_to_python(library, steps);
}

}  // namespace

}  // namespace rlopt

PYBIND11_MODULE(_enumerate, m) {
  using namespace rlopt;
  m.doc() = "Enumerates graphs that compute the same.";
  py::module_::import("torchrlopt._C");  // it uses the types Graph, Library and CostModel
  translate_errors();
  m.def("world_names", &world_names, "What the generator enumerates over, by name.");
  m.def("world", &world_to_python, py::arg("name"), "Inputs and letters of a world.");
  m.def("enumerate_pairs", &pairs_to_python, py::arg("world"), py::arg("depth"), py::arg("seed") = 0,
        py::arg("slice") = 0, py::arg("num_slices") = 1,
        "Candidate pairs of graphs that compute the same, and counts; KeyboardInterrupt ends it.");
  m.def("term_graph", &graph_of_term, py::arg("world"), py::arg("ops"), py::arg("outputs"),
        py::arg("shapes") = std::vector<Ints>{}, py::arg("statics") = std::vector<bool>{},
        py::arg("trial") = 0, "One side of a pair as a graph.");
  m.def("find_difference", &find_difference, py::arg("before"), py::arg("after"), py::arg("seed") = 0,
        py::call_guard<py::gil_scoped_release>(),
        "Where two graphs on the same inputs differ over the field or in float64; empty where they agree.");
  m.def(
      "derive", &derive_steps, py::arg("before"), py::arg("after"), py::arg("library"),
      py::arg("max_steps") = 1, py::arg("max_graphs") = 400, py::arg("cost") = py::none(),
      "Steps of the library from one graph to the other, or None; with a cost model no step may cost more.");
}
