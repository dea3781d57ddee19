// Checks a substitution by exact evaluation on random bindings, through the same matcher and apply that the
// product uses.
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
  int max_attempts = 20000;           // drawings before giving up on reaching num_bindings
  std::function<bool()> interrupted;  // polled; true ends it, not ok
};

struct VerifyResult {
  bool ok = false;
  int num_bindings = 0;               // instances on which it fired and was evaluated
  int num_refused = 0;                // instances on which it matched and apply refused
  int num_unmatched = 0;              // instances drawn that it did not match
  int num_contexts = 0;               // of those in contexts.h, in how many it was tried
  std::vector<std::string> contexts;  // their names
  bool exact_field = false;           // all evaluated over the prime field; false: some needed float64
  double max_error = 0;               // float64, relative to max(1, max|y|)
  std::string reason;                 // why not ok; or why fewer instances than asked
  std::string counter_example;        // graph text before and after, and the values that differ
};

/// Draws random instances of the pattern under its conditions and puts each in a context; applies the first
/// match that does not refuse; evaluates both graphs: over a prime field, and where that is not defined or
/// differs (true functions that the field does not interpret, rounded constants), in float64 within 1e-9 *
/// max(1, max|y|). An `exact` substitution must also agree bit for bit on NaN, Inf and signed zeros.
VerifyResult verify(const Library& library, int substitution, const VerifyOptions& options);

}  // namespace rlopt
