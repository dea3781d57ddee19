// The compiled library, and matching of all of it.
#include <algorithm>
#include <unordered_set>

#include "matcher.h"

namespace rlopt {

namespace {

size_t at(int index) { return static_cast<size_t>(index); }

/// True unless the match comes before each of its images under the symmetries.
bool is_image(const Match& match, const std::vector<Symmetry>& symmetries) {
  return std::any_of(symmetries.begin(), symmetries.end(), [&match](const Symmetry& symmetry) {
    Match image;
    for (const int line : symmetry.lines) image.nodes.push_back(match.nodes[at(line)]);
    if (image.nodes != match.nodes) return image.nodes < match.nodes;
    image.binding.tensors = match.binding.tensors;
    for (size_t i = 0; i < symmetry.tensors.size(); ++i) {
      if (symmetry.tensors[i] >= 0) image.binding.tensors[i] = match.binding.tensors[at(symmetry.tensors[i])];
    }
    return image.binding.tensors < match.binding.tensors;
  });
}

std::vector<Match> in_canonical_order(std::vector<Match> matches, const CompiledPattern& pattern) {
  std::erase_if(matches, [&](const Match& match) { return is_image(match, pattern.symmetries); });
  std::sort(matches.begin(), matches.end(), precedes);
  const auto same = [](const Match& a, const Match& b) { return !precedes(a, b) && !precedes(b, a); };
  matches.erase(std::unique(matches.begin(), matches.end(), same), matches.end());
  return matches;
}

}  // namespace

Library::Library(std::vector<Substitution> substitutions) : substitutions_(std::move(substitutions)) {
  auto patterns = std::make_shared<std::vector<CompiledPattern>>();
  for (const Substitution& each : substitutions_) patterns->push_back(compile_pattern(each));
  patterns_ = std::move(patterns);
  hash_ = library_hash(substitutions_);
}

int Library::find(const std::string& name) const {
  for (size_t i = 0; i < substitutions_.size(); ++i) {
    if (substitutions_[i].name == name) return static_cast<int>(i);
  }
  return -1;
}

GraphIndex::GraphIndex(const Graph& graph) : graph_(graph), first_(at(kNumOps) + 1, 0) {
  std::vector<Op> ops(at(graph.end_id()), Op::Input);
  size_t live = 0;
  for (NodeId id = 0; id < graph.end_id(); ++id) {
    if (!graph.alive(id)) continue;
    ops[at(id)] = graph.node(id).op;
    ++first_[static_cast<size_t>(ops[at(id)]) + 1];
    ++live;
  }
  for (size_t i = 1; i < first_.size(); ++i) first_[i] += first_[i - 1];
  ids_.resize(live);
  std::vector<size_t> next(first_.begin(), first_.end() - 1);
  for (NodeId id = 0; id < graph.end_id(); ++id) {
    if (graph.alive(id)) ids_[next[static_cast<size_t>(ops[at(id)])]++] = id;
  }
}

bool GraphIndex::depends_on(Value value, const std::vector<NodeId>& nodes) const {
  if (position_.empty()) {
    position_.assign(at(graph_.end_id()), 0);
    int next = 0;
    for (const NodeId id : graph_.topological_order()) position_[at(id)] = next++;
  }
  int first = graph_.end_id();
  for (const NodeId id : nodes) first = std::min(first, position_[at(id)]);
  // What comes before all of the nodes cannot depend on them.
  std::vector<NodeId> stack{value.node};
  std::unordered_set<NodeId> seen{value.node};
  while (!stack.empty()) {
    const NodeId id = stack.back();
    stack.pop_back();
    if (position_[at(id)] < first) continue;
    if (std::find(nodes.begin(), nodes.end(), id) != nodes.end()) return true;
    for (const Value& input : graph_.node(id).inputs) {
      if (input.present() && seen.insert(input.node).second) stack.push_back(input.node);
    }
  }
  return false;
}

bool precedes(const Match& a, const Match& b) {
  if (a.nodes != b.nodes) return a.nodes < b.nodes;
  if (a.binding.tensors != b.binding.tensors) return a.binding.tensors < b.binding.tensors;
  return a.binding.family_tensors < b.binding.family_tensors;
}

std::vector<Match> find_matches(const Graph& graph, const GraphIndex& index, const Library& library,
                                int substitution) {
  return in_canonical_order(Matcher(graph, index, library, substitution).all(),
                            library.pattern(substitution));
}

std::vector<Match> find_matches(const Graph& graph, const Library& library, int substitution) {
  return find_matches(graph, GraphIndex(graph), library, substitution);
}

std::vector<Match> find_all_matches(const Graph& graph, const Library& library) {
  const GraphIndex index(graph);
  std::vector<Match> all;
  for (int i = 0; i < static_cast<int>(library.substitutions().size()); ++i) {
    for (Match& match : find_matches(graph, index, library, i)) all.push_back(std::move(match));
  }
  return all;
}

std::vector<Match> find_matches_at(const Graph& graph, const GraphIndex& index, const Library& library,
                                   int substitution, const std::vector<NodeId>& nodes) {
  const CompiledPattern& pattern = library.pattern(substitution);
  for (const PatternLine& line : pattern.lines) {
    if (index.count(line.op) == 0) return {};
  }
  Matcher matcher(graph, index, library, substitution);
  for (const NodeId id : nodes) {
    if (!graph.alive(id)) continue;
    for (const PatternPlan& plan : pattern.plans) {
      if (pattern.lines[at(plan.start)].stands_for(graph.node(id).op)) matcher.match_at(plan, id);
    }
  }
  return in_canonical_order(matcher.take(), pattern);
}

}  // namespace rlopt
