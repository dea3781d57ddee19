// Instances of a substitution as plain Python values: what its variables stand for.
#include "../verify_instances.h"
#include "bind.h"

namespace rlopt {

namespace {

size_t at(int index) { return static_cast<size_t>(index); }

/// dtype, dims and, of a Constant, its values.
py::tuple tensor_to_python(const Graph& graph, Value value) {
  const TensorType& type = graph.type(value);
  py::list dims;
  for (const Dim& dim : type.dims) dims.append(dim.value());
  py::object content = py::none();
  const Node& node = graph.node(value.node);
  if (node.op == Op::Constant) {
    const auto& floats = std::get<Floats>(node.attr("value"));
    content = floats.empty() ? to_python(node.attr("int_value")) : py::cast(floats);
  }
  return py::make_tuple(std::string(dtype_name(type.dtype)), py::tuple(dims), content);
}

py::dict rest_to_python(const RestVariable& rest, const Attrs& attrs) {
  py::dict result;
  for (const int index : rest.attributes) {
    result[py::str(op_info(rest.op).attrs[at(index)].name)] = to_python(attrs.values()[at(index)]);
  }
  return result;
}

py::dict instance_to_python(const Substitution& substitution, const DrawnInstance& instance) {
  const Binding& binding = instance.match.binding;
  py::dict tensors, attributes, rests;
  for (size_t i = 0; i < substitution.tensors.size(); ++i) {
    const TensorVariable& tensor = substitution.tensors[i];
    if (tensor.is_new || tensor.literal) continue;
    if (!tensor.starred) {
      tensors[py::str(tensor.name)] = tensor_to_python(instance.graph, binding.tensors[i]);
      continue;
    }
    py::list members;
    for (const Value& value : binding.family_tensors[i]) {
      members.append(tensor_to_python(instance.graph, value));
    }
    tensors[py::str(tensor.name + "*")] = members;
  }
  for (size_t i = 0; i < substitution.attributes.size(); ++i) {
    const AttributeVariable& attribute = substitution.attributes[i];
    if (!attribute.starred) {
      attributes[py::str(attribute.name)] = to_python(*binding.attributes[i]);
      continue;
    }
    py::list members;
    for (const AttrValue* value : binding.family_attributes[i]) members.append(to_python(*value));
    attributes[py::str(attribute.name + "*")] = members;
  }
  for (size_t i = 0; i < substitution.rests.size(); ++i) {
    rests[py::str(substitution.rests[i].name)] = rest_to_python(substitution.rests[i], *binding.rests[i]);
  }
  py::dict result;
  result["graph"] = print_graph(instance.graph);
  result["num_members"] = instance.match.num_members;
  result["tensors"] = tensors;
  result["attributes"] = attributes;
  result["rests"] = rests;
  return result;
}

}  // namespace

py::list instances_to_python(const Library& library, int substitution, int count, uint64_t seed) {
  std::vector<DrawnInstance> drawn;
  {
    const py::gil_scoped_release release;
    drawn = draw_instances(library, substitution, count, seed);
  }
  py::list result;
  for (const DrawnInstance& instance : drawn) {
    result.append(instance_to_python(library.substitutions()[at(substitution)], instance));
  }
  return result;
}

}  // namespace rlopt
