// Exact reference interpreter: slow and simple, the oracle of the verifier and of the tests.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "infer/infer.h"

namespace rlopt {

/// Field: integers mod the prime 2^31 - 1, floating dtypes only; non-linear operators are uninterpreted
/// functions (a keyed hash of the element, the operator and its attributes; row-wise ones such as Softmax
/// hash the whole row). Float64: true functions. Integers are two's complement in both.
enum class Arithmetic : uint8_t { Field, Float64 };

/// Dense row-major tensor; Field uses `ints`, Float64 uses `doubles`.
struct RefTensor {
  std::vector<int64_t> dims;
  std::vector<int64_t> ints;
  std::vector<double> doubles;
};

/// Evaluates all outputs. `inputs` by Input/Weight node id; all dims static. Throws TypeError for an operator
/// without a reference (e.g. TopK).
std::vector<RefTensor> evaluate(const Graph& graph, const std::unordered_map<NodeId, RefTensor>& inputs,
                                Arithmetic arithmetic);

}  // namespace rlopt
