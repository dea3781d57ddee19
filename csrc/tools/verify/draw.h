// Draws random graphs that are instances of a pattern and satisfy its conditions.
#pragma once

#include <optional>
#include <vector>

#include "match/match.h"
#include "tools/verify/propose.h"

namespace rlopt {

/// A graph with only the pattern's nodes and their free inputs.
struct Instance {
  Graph graph;
  std::vector<Value> intermediates;  // read inside the pattern
  std::vector<Value> results;        // outputs of the graph
};

/// What one condition implies for a variable, used to propose likely values.
struct Hint {
  enum class Target : uint8_t {
    Rank,
    Dim,
    Shape,
    BroadcastsTo,
    Value,
    DType,
    Static,
    Constant,
    Attribute,
    AllEqual
  };
  Target target = Target::Rank;
  int slot = -1;          // tensor, or attribute for the last two
  ExprPtr index;          // Dim: the index
  ExprPtr expr;           // the value it should have; null for Static and Constant
  bool of_first = false;  // `same(e)`: later members should equal the first
};
/// Hints of all conditions; for `a || b` one side is chosen at random.
std::vector<Hint> find_hints(const Substitution& substitution, Random& random);

class Drawer {
 public:
  Drawer(const Library& library, int substitution, Random& random);
  /// Nothing if this attempt found no instance.
  std::optional<Instance> draw();

 private:
  struct Task {
    int line;
    int member;  // -1 for lines that stand for one node
  };
  struct State {
    GraphEdit edit;
    Binding binding;
    std::vector<std::vector<NodeId>> nodes;  // by line, then member (or one)
  };
  /// An operand of a draft: its slot and member.
  struct Place {
    int slot;
    int member;
  };

  bool place(size_t task, const State& state);
  bool extend(const Task& task, State& state);
  Draft make_draft(const Task& task, const State& state, std::vector<Place>& places);
  InputHint input_hint(const State& state, const Place& place) const;
  void hint_attributes(const Task& task, const State& state, Draft& draft) const;
  Value make_input(const DraftInput& input, const Place& place, const State& before, State& state);
  bool has_hint(Hint::Target target, int slot) const;
  std::optional<double> value_hint(const State& state, const Place& place) const;
  Bound evaluate_hint(const State& state, const Hint& hint, const ExprPtr& expr, int member) const;
  void bind_outputs(const Task& task, NodeId id, State& state) const;
  bool checks_hold(const Task& task, const State& state) const;
  bool check_holds(const PatternCheck& check, const State& state, int num_members, int member) const;
  bool is_bound(const Expr& expr, const State& state, int member) const;
  std::optional<Instance> finish(State state) const;
  std::string name_of(const Place& place) const;

  const Substitution& substitution_;
  const CompiledPattern& pattern_;
  Random& random_;
  std::optional<Proposer> proposer_;
  std::vector<Hint> hints_;
  std::vector<Task> tasks_;
  int num_members_ = 0;
  bool is_alike_ = false;  // members tend to have equal shapes in this instance
  int budget_ = 0;         // remaining proposals of this attempt
  std::optional<Instance> result_;
};

}  // namespace rlopt
