// Graphs from SSA text; the types of operators are inferred, not written.
#pragma once

#include <string>

#include "core/graph.h"

namespace rlopt {

/// Reads what `print_graph` prints. Throws ParseError or TypeError naming the line.
Graph parse_graph(const std::string& text);

}  // namespace rlopt
