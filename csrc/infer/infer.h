// Type and shape inference: one function per inference rule of ops.def.
#pragma once

#include <vector>

#include "core/graph.h"

namespace rlopt {

/// Types of the outputs of `op` on inputs of the given types (null pointer: omitted optional input).
/// Symbolic dims are carried through. `Leaf` operators have no inference: TypeError.
/// Throws TypeError (operator, expected, got) when types, shapes or attributes do not fit.
std::vector<TensorType> infer_types(Op op, const Attrs& attrs, const std::vector<const TensorType*>& inputs);

/// Infers and adds: the usual way to build a node.
NodeId add_inferred(GraphEdit& edit, Op op, AttrsPtr attrs, std::vector<Value> inputs, NodeNames names = {});

/// Checks all invariants (wiring, uses, types re-inferred, acyclicity, arity). Throws TypeError naming the
/// node.
void check_graph(const Graph& graph);

}  // namespace rlopt
