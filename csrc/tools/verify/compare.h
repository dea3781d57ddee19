// Compares two graphs on the same random data.
#pragma once

#include <string>

#include "tools/reference/reference.h"

namespace rlopt {

struct Comparison {
  std::string difference;   // empty: they agree
  std::string unevaluated;  // why the reference cannot evaluate the graph before (indices into nothing)
  bool is_field = true;     // compared over the prime field; false: float64 had to decide
  double error = 0;         // float64: max|a - b| / max(1, max|b|)
};

/// Inputs of both graphs are the same nodes. `round` 0 uses positive numbers in float64, others both signs;
/// with `is_exact` the results must also agree bit for bit on NaN, infinities and signed zeros.
Comparison compare(const Graph& before, const Graph& after, uint64_t seed, int round, bool is_exact);

}  // namespace rlopt
