// Type and shape inference: one function per inference rule of ops.def.
#pragma once

#include <string>
#include <vector>

#include "core/graph.h"

namespace rlopt {

/// Types of the outputs of `op` for inputs of the given types (null pointer: omitted optional input).
/// Symbolic dims are propagated. `Leaf` operators have no inference: TypeError. Throws TypeError (operator,
/// expected, got) if types, shapes or attributes do not fit.
std::vector<TensorType> infer_types(Op op, const Attrs& attrs, const std::vector<const TensorType*>& inputs);

/// Infers types and adds the node: the usual way to build one.
NodeId add_inferred(GraphEdit& edit, Op op, AttrsPtr attrs, std::vector<Value> inputs, NodeNames names = {});

/// Reads the output of `print_graph`; operators' types are inferred, not written. Throws ParseError or
/// TypeError with the line.
Graph parse_graph(const std::string& text);

/// Checks all invariants (wiring, uses, types re-inferred, acyclicity, arity). Throws TypeError with the
/// node.
void check_graph(const Graph& graph);

}  // namespace rlopt
