// Pairs of graphs that compute the same, and which of them are new.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "enumerate/enumerate.h"

namespace rlopt {

/// Two terms on the same inputs; output i of one equals output i of the other.
struct CandidatePair {
  Term left, right;
  std::vector<int> left_outputs, right_outputs;
};

/// Running counts.
struct JoinCounts {
  int64_t num_graphs = 0;
  int64_t num_fingerprints = 0;
  int64_t num_groups = 0;    // fingerprints with two or more graphs
  int64_t num_pairs = 0;     // candidates
  int64_t num_renamed = 0;   // pruned: equals another pair after renaming inputs
  int64_t num_common = 0;    // pruned: both sides begin or end with the same operator on the same tensors
  int64_t num_special = 0;   // pruned: special case of a pair with more inputs
  int64_t num_distinct = 0;  // the remaining new candidates
  int64_t num_refuted = 0;   // rejected by the second test
};

struct JoinResult {
  std::vector<CandidatePair> pairs;
  JoinCounts counts;
};

/// Enumerates, joins graphs with equal fingerprints, prunes, and tests again on other shapes and in float64.
/// In each group every graph is paired with the smallest ones only, because pairs among the others follow
/// from those.
JoinResult find_pairs(const World& world, const EnumerateOptions& options,
                      const std::function<bool()>& interrupted);

/// Where two graphs on the same inputs differ: over the field and in float64, on random data. Empty if they
/// agree.
std::string find_difference(const Graph& before, const Graph& after, uint64_t seed);

}  // namespace rlopt
