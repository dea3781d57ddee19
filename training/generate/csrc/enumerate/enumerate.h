// Enumerates all small graphs of a world, each with a fingerprint of what it computes.
#pragma once

#include <functional>
#include <unordered_map>

#include "enumerate/program.h"

namespace rlopt {

struct EnumerateOptions {
  int depth = 2;        // operators per graph, at most kMaxTermOps
  int max_outputs = 2;  // tensors without readers
  uint64_t seed = 0;
  // Keeps only fingerprints equal to `slice` mod `num_slices`: bounds the memory of a deep run.
  int slice = 0;
  int num_slices = 1;
};

struct Enumeration {
  std::vector<Term> terms;
  int64_t num_graphs = 0;  // evaluated
};

/// Terms of up to `depth` operators, up to the names of inputs and the order of independent operators. Two
/// levels of fingerprint: of each output tensor, and of the set of them; the least over all renamings of the
/// inputs. Does not extend graphs in which some value equals another one or has a smaller graph, because what
/// contains them follows from the smaller pair. Polls `interrupted`; true ends the enumeration early.
Enumeration enumerate_terms(const World& world, const EnumerateOptions& options,
                            const std::function<bool()>& interrupted);

/// Values of a term on the data of a world, for one renaming (the identity), and their hashes.
class TermValues {
 public:
  TermValues(const World& world, const ValueNumbers& numbers, Programs& programs, uint64_t seed);
  /// Hash of each value of the term by number; 0 for values that it lacks. Outputs of `replaced` (an
  /// operator, or -1) are fresh random tensors, equal for equal `fresh`.
  std::vector<uint64_t> hashes(const Term& term, int replaced = -1, uint64_t fresh = 0);

 private:
  const World& world_;
  const ValueNumbers& numbers_;
  Programs& programs_;
  uint64_t seed_;
};

/// Random data of an input under all renamings; constants keep their values.
Lanes input_lanes(const World& world, const ValueNumbers& numbers, int input, size_t num_lanes,
                  uint64_t seed);
/// Hash of a tensor in each lane.
std::vector<uint64_t> tensor_hashes(const Ints& shape, const Lanes& data, size_t num_lanes);

}  // namespace rlopt
