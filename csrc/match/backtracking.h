// The backtracking search behind find_matches; internal to this folder.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "match/match.h"

namespace rlopt {

/// Throws TypeError if a graph has too many matches: n equal readers of one value are n * n / 2 pairs that
/// could be shared, and all of them are kept. 2,000 readers are two million, for which planning took 5 s.
void require_bounded(size_t num_matches);

inline constexpr int kMaxMembers = 64;  // of a family

/// Nodes that may match the last line of a path if `start` matches the first.
std::vector<NodeId> follow(const Graph& graph, const CompiledPattern& pattern, const std::vector<int>& path,
                           NodeId start);

/// Matches one pattern on one graph. Every binding is recorded on a trail and undone on backtracking.
class Matcher {
 public:
  Matcher(const Graph& graph, const GraphIndex& index, const Library& library, int substitution);

  /// All matches, in no particular order.
  std::vector<Match> all();
  /// All matches of a pattern without a family in which `node` matches line `plan.start`.
  void match_at(const PatternPlan& plan, NodeId node);
  std::vector<Match> take() { return std::move(matches_); }
  /// The tensors that the members of an unordered family share: the values of `shared_tensors`.
  using Key = std::vector<Value>;
  /// Adds the keys of all members in which `node` is the start of `plan`.
  void add_keys_at(const PatternPlan& plan, NodeId node, std::vector<Key>& keys);
  /// All matches of the families whose members share `key`; needs the pattern's anchor.
  void match_key(const Key& key);
  /// Among the families searched so far, those that had to omit members that depend on one another.
  std::vector<Key> take_conflicts() { return std::move(conflicts_); }
  Key key_of(const std::vector<Value>& tensors) const;
  /// For `explain`: the part of the search that starts at one node.
  void trace_from(const PatternPlan& plan, NodeId node);
  /// Records the furthest point reached from now on in `progress`; null: stop recording.
  void trace(MatchProgress* progress) { progress_ = progress; }
  /// The plan whose start has the fewest candidates; null when a line of the pattern has none.
  const PatternPlan* best_plan() const;
  /// Live nodes that may match a line.
  std::vector<NodeId> candidates(const PatternLine& line) const;

 private:
  using Steps = std::vector<PatternStep>;
  using Done = std::function<bool()>;  // true ends the search

  struct Change {
    enum class Kind : uint8_t { Tensor, Attribute, Rest, Line, Family, NumMembers };
    Kind kind;
    int slot;
    Value tensor = Binding::kUnbound;
    const void* pointer = nullptr;
    int number = -1;
  };
  /// One way in which the lines of a member match.
  struct Member {
    std::vector<NodeId> nodes;   // by line; -1 for lines outside the member
    std::vector<Value> tensors;  // by slot, shared ones too
    std::vector<const AttrValue*> attributes;
    std::vector<const Attrs*> rests;
  };

  bool walk(const Steps& steps, size_t i, const Done& done);
  bool try_node(const Steps& steps, size_t i, NodeId id, const Done& done);
  bool try_order(const Steps& steps, size_t i, NodeId id, bool is_swapped, const Done& done);
  std::vector<NodeId> readers(Value value, const PatternLine& line, int position) const;
  std::pair<Value, int> rarest(const PatternLine& line, Value value, int position) const;

  /// The operands of a node; for the root of a tree of Adds, its leaves from left to right.
  std::vector<Value> operands(const PatternLine& line, NodeId id) const;

  bool is_free(NodeId id) const;
  bool fits(const PatternLine& line, const Node& node, size_t count);
  bool bind_outs(const PatternLine& line, NodeId id);
  bool bind_ins(const PatternLine& line, NodeId id, bool is_swapped);
  bool bind_attributes(const PatternLine& line, const Node& node);
  bool bind_tensor(int slot, Value value);
  bool bind_family(int slot, std::vector<Value> values);
  bool rests_agree(int rest, const Attrs& a, const Attrs& b) const;
  bool run_checks(const std::vector<int>& checks);
  bool run_final_checks(const PatternPlan& plan);
  bool check_holds(const PatternCheck& check, int member) const;
  void set_tensor(int slot, Value value);
  void set_attribute(int slot, const AttrValue* value);
  void undo(size_t mark);
  void emit();

  /// Records a failure for `explain`; the text is built only if requested. Returns false.
  template <class MakeText>
  bool fail(const MakeText& make_text) {
    if (progress_ != nullptr) record(make_text());
    return false;
  }
  void record(const std::string& failure);

  // Families, in family.cpp.
  bool match_member(const PatternPlan& plan, int member);
  bool finish_family(const PatternPlan& plan);
  void start_member(int member);
  void store_current(int member);
  void free_families(const PatternPlan& plan);
  void add_members_at(const PatternPlan& plan, NodeId node, std::vector<Member>& members);
  void match_members(const PatternPlan& plan, std::vector<Member> members);
  void match_group(const PatternPlan& plan, std::vector<Member> members);
  bool same_shared(const Member& a, const Member& b) const;
  void load(const Member& member);
  void load_family(const std::vector<Member>& members);
  std::vector<std::vector<Member>> split_by_same(const PatternPlan& plan, std::vector<Member> members);
  std::vector<Member> without_conflicts(const std::vector<Member>& members);

  const Graph& graph_;
  const GraphIndex& index_;
  const Substitution& substitution_;
  const CompiledPattern& pattern_;
  int number_;
  Binding binding_;
  int num_members_ = 0;
  std::vector<NodeId> line_nodes_;                 // of a line with a family: the node of the current member
  std::vector<std::vector<NodeId>> member_nodes_;  // by line, then member
  std::vector<bool> is_whole_;                     // by tensor slot: the list over all members is known
  std::vector<Change> trail_;
  std::vector<Match> matches_;
  std::vector<Key> conflicts_;
  int64_t work_ = 0;  // candidates tried since the last start
  MatchProgress* progress_ = nullptr;
};

}  // namespace rlopt
