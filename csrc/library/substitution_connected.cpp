// Checks that a pattern and its family are connected.
#include <algorithm>
#include <map>
#include <numeric>

#include "library/substitution_syntax.h"

namespace rlopt::syntax {

namespace {

using rlopt::Line;

void check_connected(const rlopt::Substitution& s) {
  std::vector<size_t> group(s.pattern.size());
  std::iota(group.begin(), group.end(), size_t{0});
  std::map<int, size_t> first;
  for (size_t i = 0; i < s.pattern.size(); ++i) {
    const Line& line = s.pattern[i];
    std::vector<int> slots = line.ins;
    slots.insert(slots.end(), line.outs.begin(), line.outs.end());
    for (const int slot : slots) {
      if (slot == Line::kOmitted) continue;
      const auto [it, is_new] = first.emplace(slot, i);
      if (is_new) continue;
      const size_t from = group[i], to = group[it->second];
      std::replace(group.begin(), group.end(), from, to);
    }
  }
  for (size_t i = 1; i < group.size(); ++i) {
    if (group[i] != group[0]) {
      throw SubstitutionError(s.name, s.pattern[i].line, "the pattern falls into parts that share no tensor");
    }
  }
}

void check_family(const rlopt::Substitution& s, int first_line) {
  bool has_member_line = false, has_order = false, has_shared = false;
  for (const Line& line : s.pattern) {
    has_member_line |= line.kind == Line::Kind::PerMember;
    has_order |= line.kind == Line::Kind::ReadsFamily || line.kind == Line::Kind::DefinesFamily;
    if (line.kind != Line::Kind::PerMember) continue;
    for (const int slot : line.ins) {
      if (slot == Line::kOmitted) continue;
      const TensorVariable& tensor = s.tensors[at(slot)];
      has_shared |= !tensor.starred && !tensor.literal;
    }
  }
  if (has_member_line && !has_order && !has_shared) {
    throw SubstitutionError(
        s.name, first_line,
        "nothing holds the family together: its lines share no tensor and no operator reads it whole");
  }
}

}  // namespace

void check_whole(const rlopt::Substitution& s, int first_line) {
  check_connected(s);
  check_family(s, first_line);
}

}  // namespace rlopt::syntax
