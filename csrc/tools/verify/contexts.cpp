#include "tools/verify/contexts.h"

#include <algorithm>

#include "infer/infer.h"

namespace rlopt {

namespace {

void add_output(GraphEdit& edit, Value value, const std::string& name) {
  auto outputs = edit.graph().outputs();
  auto names = edit.graph().output_names();
  outputs.push_back(value);
  names.push_back(name);
  edit.set_outputs(std::move(outputs), std::move(names));
}

/// Adds a node that reads the value, as another graph output.
void add_reader(GraphEdit& edit, Value value) {
  const Op op = edit.graph().type(value).dtype == DType::boolean ? Op::Not : Op::Neg;
  add_output(edit, {add_inferred(edit, op, Attrs::make(op, {}), {value}), 0}, "reader");
}

/// The graph with one of the pairs of (from, to) redirected; nothing if there is none.
std::optional<Graph> redirect_one(const Graph& graph, const std::vector<std::pair<Value, Value>>& pairs,
                                  Random& random) {
  if (pairs.empty()) return std::nullopt;
  const auto [from, to] = random.pick(pairs);
  GraphEdit edit(graph);
  edit.redirect(from, to);
  return edit.finish();
}

std::optional<Graph> same_tensor(const Instance& instance, Random& random) {
  const Graph& graph = instance.graph;
  std::vector<std::pair<Value, Value>> pairs;
  for (const NodeId a : graph.inputs()) {
    for (const NodeId b : graph.inputs()) {
      const Value x{a, 0}, y{b, 0};
      if (a < b && graph.node(a).op == graph.node(b).op && graph.type(x) == graph.type(y))
        pairs.emplace_back(y, x);
    }
  }
  return redirect_one(graph, pairs, random);
}

/// A second copy of all operators on the same inputs.
std::optional<Graph> overlap(const Instance& instance) {
  const Graph& graph = instance.graph;
  GraphEdit edit(graph);
  std::vector<NodeId> copy_of(static_cast<size_t>(graph.end_id()), -1);
  for (const NodeId id : graph.topological_order()) {
    const Node& node = graph.node(id);
    if (node.info().cost_class == CostClass::Leaf) {
      copy_of[at(id)] = id;
      continue;
    }
    std::vector<Value> inputs = node.inputs;
    for (Value& input : inputs) {
      if (input.present()) input.node = copy_of[at(input.node)];
    }
    copy_of[at(id)] = edit.add_node(node.op, node.attrs, std::move(inputs), *node.types);
  }
  for (const Value& output : graph.outputs()) {
    add_output(edit, {copy_of[at(output.node)], output.index}, "copy");
  }
  return edit.finish();
}

std::optional<Graph> chain(const Instance& instance, Random& random) {
  const Graph& graph = instance.graph;
  const TopologicalOrder order(graph);
  std::vector<std::pair<Value, Value>> pairs;  // input, and the output that replaces it
  for (const NodeId id : graph.inputs()) {
    for (const Value& output : graph.outputs()) {
      const Value input{id, 0};
      if (graph.type(input) == graph.type(output) && !order.depends_on(graph, output, {id}))
        pairs.emplace_back(input, output);
    }
  }
  return redirect_one(graph, pairs, random);
}

}  // namespace

const char* context_name(Context context) {
  static const char* const kNames[] = {"plain",        "second consumer", "graph output", "same tensor",
                                       "shared input", "overlap",         "chain"};
  return kNames[at(context)];
}

std::optional<Graph> put_in_context(const Instance& instance, Context context, Random& random) {
  GraphEdit edit(instance.graph);
  switch (context) {
    case Context::Plain:
      return instance.graph;
    case Context::SecondConsumer:
      add_reader(edit,
                 random.pick(instance.intermediates.empty() ? instance.results : instance.intermediates));
      return edit.finish();
    case Context::GraphOutput:
      if (instance.intermediates.empty()) return std::nullopt;
      add_output(edit, random.pick(instance.intermediates), "intermediate");
      return edit.finish();
    case Context::SameTensor:
      return same_tensor(instance, random);
    case Context::SharedInput: {
      const auto& inputs = instance.graph.inputs();
      if (inputs.empty()) return std::nullopt;
      add_reader(edit, {random.pick(inputs), 0});
      return edit.finish();
    }
    case Context::Overlap:
      return overlap(instance);
    case Context::Chain:
      return chain(instance, random);
  }
  return std::nullopt;
}

}  // namespace rlopt
