// Matching of a whole library: graph look-ups, and the canonical order of matches.
#include <algorithm>

#include "match/backtracking.h"
#include "match/list.h"

namespace rlopt {

namespace {

/// False only if the match precedes each of its images under the symmetries.
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

}  // namespace

std::vector<Match> in_canonical_order(std::vector<Match> matches, const CompiledPattern& pattern) {
  std::erase_if(matches, [&](const Match& match) { return is_image(match, pattern.symmetries); });
  std::sort(matches.begin(), matches.end(), precedes);
  const auto same = [](const Match& a, const Match& b) { return !precedes(a, b) && !precedes(b, a); };
  matches.erase(std::unique(matches.begin(), matches.end(), same), matches.end());
  return matches;
}

const GraphIndex::Table& GraphIndex::table() const {
  if (!table_.first.empty()) return table_;
  table_.first.assign(at(kNumOps) + 1, 0);
  std::vector<Op> ops(at(graph_.end_id()), Op::Input);
  for (NodeId id = 0; id < graph_.end_id(); ++id) {
    if (!graph_.alive(id)) continue;
    ops[at(id)] = graph_.node(id).op;
    ++table_.first[static_cast<size_t>(ops[at(id)]) + 1];
  }
  for (size_t i = 1; i < table_.first.size(); ++i) table_.first[i] += table_.first[i - 1];
  table_.ids.resize(table_.first.back());
  std::vector<size_t> next(table_.first.begin(), table_.first.end() - 1);
  for (NodeId id = 0; id < graph_.end_id(); ++id) {
    if (graph_.alive(id)) table_.ids[next[at(ops[at(id)])]++] = id;
  }
  return table_;
}

bool GraphIndex::depends_on(Value value, const std::vector<NodeId>& nodes) const {
  if (order_ == nullptr) order_ = &own_order_.emplace(graph_);
  return order_->depends_on(graph_, value, nodes);
}

bool GraphIndex::may_be(const PatternLine& line, NodeId id) const {
  const auto [it, is_new] = surroundings_.try_emplace(id);
  if (is_new) it->second = surroundings(graph_, id);
  return it->second.covers(line.needed);
}

/// Among the bound operands of a line, including `value`, the one with the fewest readers: in a graph whose
/// nodes all read one value, every line would otherwise be searched for among all nodes.
std::pair<Value, int> Matcher::rarest(const PatternLine& line, Value value, int position) const {
  std::pair<Value, int> found{value, position};
  if (line.family_in >= 0 || line.is_sum) return found;  // positions differ from those in the pattern
  for (size_t i = 0; i < line.ins.size(); ++i) {
    if (line.ins[i] == Line::kOmitted) continue;
    const Value bound = binding_.tensors[at(line.ins[i])];
    if (bound == Binding::kUnbound) continue;
    if (graph_.uses(bound.node).size() < graph_.uses(found.first.node).size()) {
      found = {bound, static_cast<int>(i)};
    }
  }
  return found;
}

void require_bounded(size_t num_matches) {
  constexpr size_t kMaxMatches = 500'000;
  if (num_matches < kMaxMatches) return;
  throw TypeError("a graph to which substitutions can be applied in more than " +
                  std::to_string(kMaxMatches) + " places");
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

}  // namespace rlopt
