// Contexts in which an instance of a pattern can occur in a larger graph.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/verify/draw.h"

namespace rlopt {

enum class Context : uint8_t {
  Plain,
  SecondConsumer,  // an intermediate has another reader
  GraphOutput,     // an intermediate is an output of the graph
  SameTensor,      // two inputs are one tensor
  SharedInput,     // a weight, or an input, has another reader
  Overlap,         // the pattern occurs twice on the same inputs
  Chain,           // an input is an output of the same pattern: a match with several roots may close a cycle
};
inline constexpr int kNumContexts = 7;
const char* context_name(Context context);

/// The instance in that context; nothing if the context does not apply (no intermediate, no two inputs of one
/// type, ...).
std::optional<Graph> put_in_context(const Instance& instance, Context context, Random& random);

}  // namespace rlopt
