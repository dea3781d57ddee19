// Patterns compiled for matching: resolved slots and attribute indices, and an order of the lines for every
// start.
#pragma once

#include <array>
#include <bitset>
#include <string>
#include <utility>
#include <vector>

#include "library/substitution.h"

namespace rlopt {

/// A renaming that maps a substitution to itself: line i takes the place of line `lines[i]`, tensor v that of
/// `tensors[v]`. Both matches lead to the same graph up to the order of commutative operands, so one of them
/// is enough.
struct Symmetry {
  std::vector<int> lines;
  std::vector<int> tensors;
};
/// All except the identity; none for substitutions with a family, whose members have their own order.
std::vector<Symmetry> find_symmetries(const Substitution& substitution);

/// A clause of the condition, or `attribute of a line == expression`.
struct PatternCheck {
  enum class Level : uint8_t {
    Plain,   // no family involved
    Member,  // one value per member; must hold for each
    Family,  // concerns the family as a whole
    Same,    // `same(e)`: members with different e are different families
  };
  Level level = Level::Plain;
  ExprPtr expr;
  int line = -1;  // >= 0: attribute of this line that must equal `expr`, given below
  int attribute = 0;
  std::string text;  // for `explain`
};

/// A set of operators.
class OpMask {
 public:
  void add(Op op) { words_[static_cast<size_t>(op) / 64] |= uint64_t{1} << (static_cast<size_t>(op) % 64); }
  bool covers(const OpMask& other) const {
    for (size_t i = 0; i < words_.size(); ++i) {
      if ((other.words_[i] & ~words_[i]) != 0) return false;
    }
    return true;
  }

 private:
  std::array<uint64_t, (static_cast<size_t>(kNumOps) + 63) / 64> words_{};
};

/// Operators adjacent to a node, or those that a pattern requires there.
struct Surroundings {
  OpMask producers;
  OpMask readers;
  bool covers(const Surroundings& needed) const {
    return producers.covers(needed.producers) && readers.covers(needed.readers);
  }
};
Surroundings surroundings(const Graph& graph, NodeId id);

struct PatternLine {
  Line::Kind kind = Line::Kind::Plain;
  Op op = Op::Opaque;
  int num_orders = 1;  // operand orders to try: those of a commutative operator with two plain inputs
  std::vector<int> ins;
  std::vector<int> outs;
  int family_in = -1;                                  // ReadsFamily: which input is the family
  std::vector<std::pair<int, int>> bound_attrs;        // schema index, slot
  std::vector<std::pair<int, AttrValue>> equal_attrs;  // schema index, value
  int rest = -1;
  bool is_sum = false;  // `y = Sum(t*)`: also matches a tree of Adds
  Surroundings needed;  // required neighbours: a node without them cannot match

  bool stands_for(Op found) const { return found == op || (is_sum && found == Op::Add); }
};

/// A line to match, and where to look for its node.
struct PatternStep {
  enum class Via : uint8_t { Start, Output, Input };
  int line = 0;
  Via via = Via::Start;
  int slot = -1;            // an already bound tensor
  int position = 0;         // position of that tensor among the outputs or inputs of the line
  std::vector<int> checks;  // decidable once this line is bound
};

/// Lines in matching order from one start. Without a family: only `before`. If an operator fixes the order of
/// the members: `before` has it, then `member` for each, then `after`. Otherwise: all bindings of `member` in
/// the graph, grouped by shared tensors and attributes, then `after`.
struct PatternPlan {
  std::vector<PatternStep> before;
  std::vector<PatternStep> member;
  std::vector<PatternStep> after;
  std::vector<int> final_checks;  // checks that run at the end, such as those over a whole family
  int start = 0;                  // line
};

using SlotSet = std::bitset<128>;

/// How to find the members of an unordered family from a tensor that they share: it is input `position` of
/// the line that `plan` starts with.
struct GroupAnchor {
  int plan = -1;   // -1: no such tensor
  int shared = 0;  // index in shared_tensors
  int position = 0;
};

struct CompiledPattern {
  enum class Mode : uint8_t { Single, OrderedFamily, FreeFamily };
  Mode mode = Mode::Single;
  std::vector<PatternLine> lines;
  std::vector<PatternCheck> checks;
  std::vector<PatternPlan> plans;    // one per line that can be the start
  std::vector<int> starred_tensors;  // slots of the pattern
  std::vector<int> shared_tensors;
  std::vector<int> starred_attributes;
  std::vector<int> shared_attributes;
  std::vector<int> starred_outputs;  // those of `starred_tensors` that are replaced
  std::vector<int> starred_inputs;   // those of `starred_tensors` that no line defines
  size_t num_tensors = 0;            // slots, including those of the replacement
  std::vector<Symmetry> symmetries;
  bool counts_uses = false;             // has a tree of Adds, of which the inner ones have no other readers
  GroupAnchor anchor;                   // FreeFamily
  std::vector<std::vector<int>> paths;  // OrderedFamily: from each line to the start of plans[0], inclusive

  /// Whether matches depend only on the neighbourhood of their nodes, and can be found from there.
  bool is_local() const { return mode != Mode::FreeFamily || anchor.plan >= 0; }
};

/// Throws SubstitutionError if no matching order exists or the pattern is too large.
CompiledPattern compile_pattern(const Substitution& substitution);

}  // namespace rlopt
