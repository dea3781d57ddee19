// Graphs, their builder and the operator table.
#include "bindings/bind.h"
#include "core/text.h"
#include "infer/infer.h"

namespace rlopt {

namespace {

/// (node id, output index), or None for an omitted optional input.
py::object value_to_python(const Value& value) {
  if (!value.present()) return py::none();
  return py::make_tuple(value.node, value.index);
}

Value value_from_python(const py::handle& value) {
  if (value.is_none()) return {};
  const auto pair = value.cast<std::pair<NodeId, int32_t>>();
  return {pair.first, pair.second};
}

std::vector<Value> values_from_python(const py::sequence& values) {
  std::vector<Value> result;
  for (const auto& value : values) result.push_back(value_from_python(value));
  return result;
}

/// Dims for Python: int, or str for a symbolic one.
py::list dims_to_python(const TensorType& type) {
  py::list dims;
  for (const Dim& dim : type.dims) {
    if (dim.is_static()) {
      dims.append(dim.value());
    } else {
      dims.append(dim.str());
    }
  }
  return dims;
}

/// (dtype, dims); dims None for unknown rank.
py::tuple type_to_python(const TensorType& type) {
  return py::make_tuple(dtype_name(type.dtype),
                        type.has_rank ? py::object(dims_to_python(type)) : py::none());
}

TensorType type_from_python(const py::handle& type) {
  const auto pair = type.cast<py::tuple>();
  TensorType result;
  result.dtype = parse_dtype(pair[0].cast<std::string>());
  result.has_rank = !pair[1].is_none();
  if (!result.has_rank) return result;
  for (const auto& dim : pair[1].cast<py::sequence>()) {
    result.dims.push_back(py::isinstance<py::str>(dim) ? Dim::parse(dim.cast<std::string>())
                                                       : Dim(dim.cast<int64_t>()));
  }
  return result;
}

std::vector<TensorType> types_from_python(const py::sequence& types) {
  std::vector<TensorType> result;
  for (const auto& type : types) result.push_back(type_from_python(type));
  return result;
}

/// A node as a plain dictionary.
py::dict node_to_python(const Graph& graph, NodeId id) {
  const Node& node = graph.at(id);
  py::dict attrs;
  for (size_t i = 0; i < node.info().attrs.size(); ++i) {
    attrs[py::str(node.info().attrs[i].name)] = to_python(node.attrs->values()[i]);
  }
  py::list inputs;
  for (const Value& input : node.inputs) inputs.append(value_to_python(input));
  py::list types;
  for (const TensorType& type : *node.types) types.append(type_to_python(type));
  py::dict result;
  result["id"] = id;
  result["op"] = node.info().name;
  result["domain"] = node.info().domain;
  result["attrs"] = attrs;
  result["inputs"] = inputs;
  result["types"] = types;
  result["name"] = node.names->node;
  result["output_names"] = node.names->outputs;
  result["is_static"] = node.is_static;
  result["keeps_bits"] = node.keeps_bits;
  return result;
}

py::list ops_to_python() {
  py::list result;
  for (const OpInfo& info : all_ops()) {
    py::dict attrs;
    for (const AttrSpec& spec : info.attrs) {
      attrs[py::str(spec.name)] = spec.required ? py::none() : to_python(spec.default_value);
    }
    py::dict op;
    op["name"] = info.name;
    op["domain"] = info.domain;
    op["min_inputs"] = info.min_inputs;
    op["max_inputs"] = info.max_inputs;
    op["num_outputs"] = info.num_outputs;
    op["attrs"] = attrs;
    op["cost_class"] = cost_class_name(info.cost_class);
    op["is_typed"] = info.infer != InferRule::Leaf;
    result.append(op);
  }
  return result;
}

}  // namespace

void bind_graph(py::module_& m) {
  m.def("ops", &ops_to_python, "The operator table of ops.def, by id: one dict per operator.");
  m.def("parse_graph", &parse_graph, py::arg("text"),
        "Parses graph text. Raises ModelFormatError naming the line.");

  py::class_<Graph>(m, "Graph", "Immutable dataflow graph.")
      .def("text", &print_graph, "SSA text that parse_graph reads.")
      .def("canonical_text", &canonical_text, "Text with canonical names: equal for equal structures.")
      .def("hash", &Graph::hash, "Structural hash, 64 bits.")
      .def("check", &check_graph, py::call_guard<py::gil_scoped_release>(),
           "Raises if an invariant is broken.")
      .def("node", &node_to_python, py::arg("id"), "A node as a dict.")
      .def("topological_order", &Graph::topological_order, "Live node ids, producers first.")
      .def(
          "type",
          [](const Graph& graph, const py::handle& value) {
            return type_to_python(graph.at(value_from_python(value)));
          },
          py::arg("value"), "(dtype, dims) of a value.")
      .def_property_readonly(
          "inputs", [](const Graph& graph) { return graph.inputs(); }, "Input and Weight node ids.")
      .def_property_readonly("outputs",
                             [](const Graph& graph) {
                               py::list outputs;
                               for (const Value& value : graph.outputs())
                                 outputs.append(value_to_python(value));
                               return outputs;
                             })
      .def_property_readonly("output_names", [](const Graph& graph) { return graph.output_names(); })
      .def_property_readonly("num_operators", &Graph::num_operators, "Live nodes without leaves.")
      .def("__repr__", [](const Graph& graph) {
        return "<Graph of " + std::to_string(graph.num_operators()) + " operators>";
      });

  py::class_<GraphEdit>(m, "GraphBuilder", "Builds a graph node by node; values are (node id, output index).")
      .def(py::init<>())
      .def(
          "add_input",
          [](GraphEdit& edit, const std::string& name, const py::handle& type, bool is_weight) {
            return edit.add_input(name, type_from_python(type), is_weight);
          },
          py::arg("name"), py::arg("type"), py::arg("is_weight") = false)
      .def(
          "add_node",
          [](GraphEdit& edit, const std::string& op_name, const py::sequence& inputs, const py::dict& attrs,
             const std::string& name, const std::vector<std::string>& output_names) {
            const Op op = find_op(op_name);
            if (op == Op::Opaque) throw TypeError("'" + op_name + "' is not an operator with type inference");
            return add_inferred(edit, op, Attrs::make(op, attrs_from_python(attrs)),
                                values_from_python(inputs), {name, output_names});
          },
          py::arg("op"), py::arg("inputs"), py::arg("attrs"), py::arg("name") = "",
          py::arg("output_names") = std::vector<std::string>{},
          "Adds a node whose types are inferred; its id.")
      .def(
          "add_leaf",
          [](GraphEdit& edit, const std::string& op_name, const py::sequence& inputs, const py::dict& attrs,
             const py::sequence& types, const std::string& name,
             const std::vector<std::string>& output_names) {
            const Op op = find_op(op_name);
            if (op_info(op).infer != InferRule::Leaf)
              throw TypeError(op_name + " has type inference: use add_node");
            if (op == Op::Input || op == Op::Weight) throw TypeError(op_name + ": use add_input");
            return edit.add_node(op, Attrs::make(op, attrs_from_python(attrs)), values_from_python(inputs),
                                 types_from_python(types), {name, output_names});
          },
          py::arg("op"), py::arg("inputs"), py::arg("attrs"), py::arg("types"), py::arg("name") = "",
          py::arg("output_names") = std::vector<std::string>{},
          "Adds a Constant or Opaque node of given types; its id.")
      .def(
          "type",
          [](const GraphEdit& edit, const py::handle& value) {
            return type_to_python(edit.graph().at(value_from_python(value)));
          },
          py::arg("value"))
      .def(
          "set_outputs",
          [](GraphEdit& edit, const py::sequence& values, const std::vector<std::string>& names) {
            edit.set_outputs(values_from_python(values), names);
          },
          py::arg("values"), py::arg("names"))
      .def(
          "finish", [](GraphEdit& edit) { return std::exchange(edit, {}).finish(); },
          "The graph; the builder is empty afterwards.");
}

}  // namespace rlopt
