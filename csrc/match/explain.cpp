// Why a substitution did not fire.
#include <algorithm>

#include "match/backtracking.h"

namespace rlopt {

std::vector<MatchProgress> trace_matches(const Graph& graph, const Library& library, int substitution) {
  const GraphIndex index(graph);
  const CompiledPattern& pattern = library.pattern(substitution);
  const std::vector<Match> matches = find_matches(graph, index, library, substitution);
  Matcher matcher(graph, index, library, substitution);
  const PatternPlan* plan = matcher.best_plan();
  if (plan == nullptr) return {};
  std::vector<MatchProgress> all;
  for (const NodeId id : matcher.candidates(pattern.lines[at(plan->start)])) {
    const bool is_matched = std::any_of(matches.begin(), matches.end(), [&](const Match& match) {
      return std::find(match.nodes.begin(), match.nodes.end(), id) != match.nodes.end();
    });
    if (is_matched) continue;
    MatchProgress progress;
    progress.start = id;
    progress.failure = pattern.mode == CompiledPattern::Mode::Single
                           ? "what stands next to it is not what the pattern has there"
                           : "no second member shares its inputs and attributes";  // a single member matched
    matcher.trace(&progress);
    matcher.trace_from(*plan, id);
    all.push_back(std::move(progress));
  }
  return all;
}

std::string explain(const Graph& graph, const Library& library, int substitution) {
  const Substitution& s = library.substitutions()[at(substitution)];
  const GraphIndex index(graph);
  for (const PatternLine& line : library.pattern(substitution).lines) {
    const bool has_adds = line.is_sum && index.count(Op::Add) > 0;
    if (index.count(line.op) == 0 && !has_adds) return "the graph has no " + op_info(line.op).name + "\n";
  }
  std::string text;
  for (const Match& match : find_matches(graph, index, library, substitution)) {
    text += "matches at";
    for (const NodeId id : match.nodes) text += " " + std::to_string(id);
    text += "\n";
  }
  for (const MatchProgress& progress : trace_matches(graph, library, substitution)) {
    const Node& node = graph.node(progress.start);
    const std::string& name = node.names->node;
    text += "node " + std::to_string(progress.start) + " (" + node.info().name +
            (name.empty() ? "" : " " + name) + "): " + std::to_string(progress.num_lines) + " of " +
            std::to_string(s.pattern.size()) + " lines matched; " + progress.failure + "\n";
  }
  return text;
}

}  // namespace rlopt
