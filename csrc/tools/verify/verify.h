// Checks a substitution by exact evaluation on random bindings, through the product's own matcher and apply.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "match/apply.h"
#include "tools/reference/reference.h"

namespace rlopt {

struct VerifyOptions {
  int num_bindings = 200;  // distinct shape and attribute instances
  int num_seeds = 2;       // random data per instance
  uint64_t seed = 0;
  int max_attempts = 20000;           // draws before giving up on reaching num_bindings
  std::function<bool()> interrupted;  // polled; true aborts, with `ok` false
};

struct VerifyResult {
  bool ok = false;
  int num_bindings = 0;               // instances on which it fired and was evaluated
  int num_refused = 0;                // instances on which it matched but apply refused
  int num_unmatched = 0;              // drawn instances that it did not match
  int num_contexts = 0;               // number of contexts (contexts.h) in which it was tried
  std::vector<std::string> contexts;  // their names
  bool exact_field = false;           // all were evaluated over the prime field; false: some needed float64
  double max_error = 0;               // float64, relative to max(1, max|y|)
  std::string reason;                 // why it is not ok, or why there are fewer instances than requested
  std::string counter_example;        // graph text before and after, and the differing values
};

/// Draws random instances of the pattern under its conditions and puts each in a context; applies the first
/// match that does not refuse; evaluates both graphs over a prime field and, if that is undefined or differs
/// (true functions that the field does not interpret, rounded constants), in float64 within 1e-9 * max(1,
/// max|y|). An `exact` substitution must also agree bit for bit on NaN, Inf and signed zeros.
VerifyResult verify(const Library& library, int substitution, const VerifyOptions& options);

/// An instance as plain values, for callers that reason about it instead of evaluating it.
struct DrawnInstance {
  Graph graph;
  Match match;  // a match that apply does not refuse
};
/// Up to `count` distinct instances on which the substitution fires, drawn as in `verify`. The match's
/// attributes belong to the graph's nodes.
std::vector<DrawnInstance> draw_instances(const Library& library, int substitution, int count, uint64_t seed);

}  // namespace rlopt
