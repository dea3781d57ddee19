// Parses graphs from SSA text; operators' types are inferred, not written.
#pragma once

#include <string>

#include "core/graph.h"

namespace rlopt {

/// Reads the output of `print_graph`. Throws ParseError or TypeError with the line.
Graph parse_graph(const std::string& text);

}  // namespace rlopt
