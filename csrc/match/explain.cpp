// Why a substitution did not fire.
#include <unordered_set>

#include "match/backtracking.h"

namespace rlopt {

std::string explain(const Graph& graph, const Library& library, int substitution) {
  const CompiledPattern& pattern = library.pattern(substitution);
  const GraphIndex index(graph);
  for (const PatternLine& line : pattern.lines) {
    const bool has_adds = line.is_sum && index.count(Op::Add) > 0;
    if (index.count(line.op) == 0 && !has_adds) return "the graph has no " + op_info(line.op).name + "\n";
  }
  std::string text;
  std::unordered_set<NodeId> matched;
  for (const Match& match : find_matches(graph, index, library, substitution)) {
    text += "matches at";
    for (const NodeId id : match.nodes) text += " " + std::to_string(id);
    text += "\n";
    matched.insert(match.nodes.begin(), match.nodes.end());
  }
  Matcher matcher(graph, index, library, substitution);
  const PatternPlan& plan = *matcher.best_plan();  // every operator of the pattern is there
  for (const NodeId id : matcher.candidates(pattern.lines[at(plan.start)])) {
    if (matched.contains(id)) continue;
    MatchProgress progress;
    progress.failure = pattern.mode == CompiledPattern::Mode::Single
                           ? "what stands next to it is not what the pattern has there"
                           : "no second member shares its inputs and attributes";  // a single member matched
    matcher.trace(&progress);
    matcher.trace_from(plan, id);
    const Node& node = graph.node(id);
    const std::string& name = node.names->node;
    text += "node " + std::to_string(id) + " (" + node.info().name + (name.empty() ? "" : " " + name) +
            "): " + std::to_string(progress.num_lines) + " of " + std::to_string(pattern.lines.size()) +
            " lines matched; " + progress.failure + "\n";
  }
  return text;
}

}  // namespace rlopt
