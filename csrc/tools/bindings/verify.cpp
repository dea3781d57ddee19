// The checker of substitutions, and the instances it draws as plain Python values.
#include "tools/verify/verify.h"

#include "core/text.h"
#include "tools/bindings/bind.h"

namespace rlopt {

namespace {

/// dtype, dims and, for a Constant, its values.
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

py::list instances_to_python(const Library& library, const std::string& name, int count, uint64_t seed) {
  const int substitution = index_of(library, name);
  const auto drawn = without_gil([&] { return draw_instances(library, substitution, count, seed); });
  py::list result;
  for (const DrawnInstance& instance : drawn) {
    result.append(instance_to_python(library.substitutions()[at(substitution)], instance));
  }
  return result;
}

py::dict verify_to_python(const Library& library, const std::string& name, int bindings, int seeds,
                          uint64_t seed, int max_attempts) {
  VerifyOptions options;
  options.max_attempts = max_attempts;
  options.num_bindings = bindings;
  options.num_seeds = seeds;
  options.seed = seed;
  const int index = index_of(library, name);
  const VerifyResult result = with_signals([&](const auto& interrupted) {
    options.interrupted = interrupted;
    return verify(library, index, options);
  });
  py::dict dict;
  dict["ok"] = result.ok;
  dict["num_bindings"] = result.num_bindings;
  dict["num_refused"] = result.num_refused;
  dict["num_unmatched"] = result.num_unmatched;
  dict["num_contexts"] = result.num_contexts;
  dict["contexts"] = result.contexts;
  dict["exact_field"] = result.exact_field;
  dict["max_error"] = result.max_error;
  dict["reason"] = result.reason;
  dict["counter_example"] = result.counter_example;
  return dict;
}

}  // namespace

void bind_verify(py::module_& m) {
  m.def("verify", &verify_to_python, py::arg("library"), py::arg("name"), py::arg("bindings") = 200,
        py::arg("seeds") = 2, py::arg("seed") = 0, py::arg("max_attempts") = 20000,
        "Exact evaluation of a substitution on random instances of its pattern, in all contexts.");
  m.def("instances", &instances_to_python, py::arg("library"), py::arg("name"), py::arg("count"),
        py::arg("seed") = 0, "Distinct instances on which a substitution fires, as `verify` draws them.");
}

}  // namespace rlopt
