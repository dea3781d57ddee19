// Patterns compiled for matching: slots and attribute indices resolved, an order of the lines for every
// start.
#pragma once

#include <array>
#include <bitset>
#include <string>
#include <utility>
#include <vector>

#include "library/symmetry.h"

namespace rlopt {

/// A part of the condition, or `attribute of a line == expression`.
struct PatternCheck {
  enum class Level : uint8_t {
    Plain,   // no family in it
    Member,  // has a value for each member, and must hold for each
    Family,  // speaks of the family as a whole
    Same,    // `same(e)`: members with different e are different families
  };
  Level level = Level::Plain;
  ExprPtr expr;
  int line = -1;  // >= 0: the attribute below of this line must equal `expr`
  int attribute = 0;
  std::string text;          // for `explain`
  bool counts_uses = false;  // calls num_uses
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

/// Operators next to a node, or those that a pattern asks for there.
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
  bool is_sum = false;  // `y = Sum(t*)`: stands for a tree of Adds as well
  Surroundings needed;  // a node without them cannot be this line

  bool stands_for(Op found) const { return found == op || (is_sum && found == Op::Add); }
};

/// One line to match, and where to look for its node.
struct PatternStep {
  enum class Via : uint8_t { Start, Output, Input };
  int line = 0;
  Via via = Via::Start;
  int slot = -1;            // tensor that is bound already
  int position = 0;         // of that tensor among the outputs or inputs of the line
  std::vector<int> checks;  // that can be decided once this line is bound
};

/// Lines in the order in which they are matched from one start.
/// Without a family: `before` only. Where an operator fixes the order of the members: `before` holds it, then
/// `member` for each, then `after`. Otherwise: all bindings of `member` in the graph, grouped by what they
/// share, then `after`.
struct PatternPlan {
  std::vector<PatternStep> before;
  std::vector<PatternStep> member;
  std::vector<PatternStep> after;
  std::vector<int> final_checks;  // checks left for the end, such as those over a whole family
  int start = 0;                  // line
};

using SlotSet = std::bitset<128>;

/// How the members of a family without an order are found from a tensor that they share: it is input
/// `position` of the line that `plan` starts with.
struct GroupAnchor {
  int plan = -1;   // -1: there is no such tensor
  int shared = 0;  // index in shared_tensors
  int position = 0;
};

struct CompiledPattern {
  enum class Mode : uint8_t { Single, OrderedFamily, FreeFamily };
  Mode mode = Mode::Single;
  std::vector<PatternLine> lines;
  std::vector<PatternCheck> checks;
  std::vector<PatternPlan> plans;    // one for each line that can be the start
  std::vector<int> starred_tensors;  // slots of the pattern
  std::vector<int> shared_tensors;
  std::vector<int> starred_attributes;
  std::vector<int> shared_attributes;
  std::vector<int> starred_outputs;  // of `starred_tensors`, those that are replaced
  std::vector<int> starred_inputs;   // of `starred_tensors`, those that no line defines
  size_t num_tensors = 0;            // slots, those of the replacement included
  std::vector<Symmetry> symmetries;
  bool counts_uses = false;  // a condition calls num_uses
  GroupAnchor anchor;        // FreeFamily
  std::vector<std::vector<int>>
      paths;  // OrderedFamily: from each line to where plans[0] starts, both included

  /// Matches depend on what stands around their nodes only, and can be found from there.
  bool is_local() const { return mode != Mode::FreeFamily || anchor.plan >= 0; }
};

/// Throws SubstitutionError where no order of matching exists or the pattern is too large.
CompiledPattern compile_pattern(const Substitution& substitution);

}  // namespace rlopt
