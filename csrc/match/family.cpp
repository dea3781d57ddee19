// Families: ordered by an operator, or found through the tensor that all members share.
#include <algorithm>
#include <map>

#include "match/backtracking.h"

namespace rlopt {

namespace {

/// Order of members: by the ids of their nodes, then by their tensors.
template <class Member>
bool earlier(const Member& a, const Member& b) {
  return a.nodes != b.nodes ? a.nodes < b.nodes : a.tensors < b.tensors;
}

}  // namespace

/// Clears the bindings of the last member and takes this member's part of the known lists; -1: no member.
void Matcher::start_member(int member) {
  for (const int slot : pattern_.starred_tensors) {
    const bool is_known = member >= 0 && is_whole_[at(slot)];
    set_tensor(slot, is_known ? binding_.family_tensors[at(slot)][at(member)] : Binding::kUnbound);
  }
  for (const int slot : pattern_.starred_attributes) set_attribute(slot, nullptr);
  for (size_t i = 0; i < pattern_.lines.size(); ++i) {
    if (pattern_.lines[i].kind != Line::Kind::PerMember) continue;
    trail_.push_back({Change::Kind::Line, static_cast<int>(i), {}, nullptr, line_nodes_[i]});
    line_nodes_[i] = -1;
  }
}

void Matcher::store_current(int member) {
  const auto count = at(num_members_);
  for (const int slot : pattern_.starred_tensors) {
    if (is_whole_[at(slot)]) continue;
    binding_.family_tensors[at(slot)].resize(count, Binding::kUnbound);
    binding_.family_tensors[at(slot)][at(member)] = binding_.tensors[at(slot)];
  }
  for (const int slot : pattern_.starred_attributes) {
    binding_.family_attributes[at(slot)].resize(count, nullptr);
    binding_.family_attributes[at(slot)][at(member)] = binding_.attributes[at(slot)];
  }
  for (size_t i = 0; i < pattern_.lines.size(); ++i) {
    if (pattern_.lines[i].kind != Line::Kind::PerMember) continue;
    member_nodes_[i].resize(count, -1);
    member_nodes_[i][at(member)] = line_nodes_[i];
  }
}

/// Members in their fixed order; takes the first way in which all of them match.
bool Matcher::match_member(const PatternPlan& plan, int member) {
  if (member == num_members_) return finish_family(plan);
  const size_t mark = trail_.size();
  start_member(member);
  const bool stop = walk(plan.member, 0, [&] {
    store_current(member);
    return match_member(plan, member + 1);
  });
  undo(mark);
  return stop;
}

/// All members are stored: match the remaining lines, check the conditions on the whole family, and emit.
bool Matcher::finish_family(const PatternPlan& plan) {
  const size_t mark = trail_.size();
  start_member(-1);
  const std::vector<bool> known = is_whole_;
  for (const int slot : pattern_.starred_tensors) is_whole_[at(slot)] = true;
  const bool found = walk(plan.after, 0, [&] {
    if (!run_final_checks(plan)) return false;
    emit();
    return true;
  });
  is_whole_ = known;
  undo(mark);
  return found;
}

/// Members belong together if they agree on everything without a star.
bool Matcher::same_shared(const Member& a, const Member& b) const {
  for (const int slot : pattern_.shared_tensors) {
    if (a.tensors[at(slot)] != b.tensors[at(slot)]) return false;
  }
  for (const int slot : pattern_.shared_attributes) {
    const AttrValue *x = a.attributes[at(slot)], *y = b.attributes[at(slot)];
    if (x != y && (x == nullptr || y == nullptr || !(*x == *y))) return false;
  }
  for (size_t i = 0; i < a.rests.size(); ++i) {
    const Attrs *x = a.rests[i], *y = b.rests[i];
    if (x != y && (x == nullptr || y == nullptr || !rests_agree(static_cast<int>(i), *x, *y))) return false;
  }
  return true;
}

void Matcher::add_members_at(const PatternPlan& plan, NodeId node, std::vector<Member>& members) {
  if (!index_.may_be(pattern_.lines[at(plan.start)], node)) return;
  work_ = 0;
  try_node(plan.member, 0, node, [&] {
    members.push_back({line_nodes_, binding_.tensors, binding_.attributes, binding_.rests});
    return false;
  });
}

Matcher::Key Matcher::key_of(const std::vector<Value>& tensors) const {
  Key key;
  for (const int slot : pattern_.shared_tensors) key.push_back(tensors[at(slot)]);
  return key;
}

void Matcher::add_keys_at(const PatternPlan& plan, NodeId node, std::vector<Key>& keys) {
  std::vector<Member> members;
  add_members_at(plan, node, members);
  for (const Member& member : members) keys.push_back(key_of(member.tensors));
}

void Matcher::match_key(const Key& key) {
  const GroupAnchor& anchor = pattern_.anchor;
  const PatternPlan& plan = pattern_.plans[at(anchor.plan)];
  const Value shared = key[at(anchor.shared)];
  if (!graph_.alive(shared.node)) return;
  std::vector<Member> members;
  for (const NodeId id : readers(shared, pattern_.lines[at(plan.start)], anchor.position)) {
    add_members_at(plan, id, members);
  }
  std::erase_if(members, [&](const Member& member) { return key_of(member.tensors) != key; });
  match_members(plan, std::move(members));
}

void Matcher::free_families(const PatternPlan& plan) {
  std::vector<Member> members;
  const Op op = pattern_.lines[at(plan.start)].op;
  for (const NodeId* id = index_.begin(op); id != index_.end(op); ++id) add_members_at(plan, *id, members);
  match_members(plan, std::move(members));
}

void Matcher::match_members(const PatternPlan& plan, std::vector<Member> members) {
  if (members.size() < 2) return;
  std::sort(members.begin(), members.end(), earlier<Member>);
  // Bucket by the shared tensors first, so that only likely partners are compared in full.
  std::map<Key, std::vector<std::vector<Member>>> groups;
  for (Member& member : members) {
    auto& bucket = groups[key_of(member.tensors)];
    const auto it = std::find_if(bucket.begin(), bucket.end(),
                                 [&](const auto& group) { return same_shared(group.front(), member); });
    if (it == bucket.end()) {
      bucket.push_back({std::move(member)});
    } else {
      it->push_back(std::move(member));
    }
  }
  for (auto& [key, bucket] : groups) {
    for (auto& group : bucket) {
      if (group.size() >= 2) match_group(plan, std::move(group));
    }
  }
}

void Matcher::match_group(const PatternPlan& plan, std::vector<Member> members) {
  // A node belongs to only one member: the first that has it.
  std::vector<NodeId> taken;
  std::erase_if(members, [&](const Member& member) {
    for (const NodeId id : member.nodes) {
      if (id >= 0 && std::find(taken.begin(), taken.end(), id) != taken.end()) return true;
    }
    taken.insert(taken.end(), member.nodes.begin(), member.nodes.end());
    return false;
  });
  for (const auto& group : split_by_same(plan, std::move(members))) {
    std::vector<Member> fitting = without_conflicts(group);
    if (fitting.size() > at(kMaxMembers)) fitting.resize(at(kMaxMembers));
    // If a condition on the whole family fails, drop the last member and try again.
    for (bool found = false; !found && fitting.size() >= 2; fitting.pop_back()) {
      work_ = 0;
      load_family(fitting);
      found = finish_family(plan);
    }
  }
  load({std::vector<NodeId>(line_nodes_.size(), -1),
        std::vector<Value>(binding_.tensors.size(), Binding::kUnbound),
        std::vector<const AttrValue*>(binding_.attributes.size(), nullptr),
        std::vector<const Attrs*>(binding_.rests.size(), nullptr)});
}

void Matcher::load(const Member& member) {
  line_nodes_ = member.nodes;
  binding_.tensors = member.tensors;
  binding_.attributes = member.attributes;
  binding_.rests = member.rests;
}

void Matcher::load_family(const std::vector<Member>& members) {
  num_members_ = static_cast<int>(members.size());
  for (size_t m = 0; m < members.size(); ++m) {
    load(members[m]);
    store_current(static_cast<int>(m));
  }
  for (const int slot : pattern_.starred_tensors) binding_.family_tensors[at(slot)].resize(members.size());
  for (const int slot : pattern_.starred_attributes)
    binding_.family_attributes[at(slot)].resize(members.size());
}

/// Members with different values of `e` in a condition `same(e)` form separate families.
std::vector<std::vector<Matcher::Member>> Matcher::split_by_same(const PatternPlan& plan,
                                                                 std::vector<Member> members) {
  std::vector<std::vector<Member>> groups{std::move(members)};
  for (const int i : plan.final_checks) {
    const PatternCheck& check = pattern_.checks[at(i)];
    if (check.level != PatternCheck::Level::Same) continue;
    const Expr& each = *check.expr->args[0]->args[0];  // same(Gather(each))
    std::vector<std::vector<Member>> finer;
    for (auto& group : groups) {
      std::vector<std::pair<Bound, std::vector<Member>>> parts;
      for (Member& member : group) {
        load(member);
        const Bound value = evaluate(each, graph_, binding_, 0, -1);
        const auto it = std::find_if(parts.begin(), parts.end(), [&](const auto& part) {
          return bounds_equal(part.first, value).value_or(false);
        });
        if (it == parts.end()) {
          parts.push_back({value, {std::move(member)}});
        } else {
          it->second.push_back(std::move(member));
        }
      }
      for (auto& part : parts) finer.push_back(std::move(part.second));
    }
    groups = std::move(finer);
  }
  return groups;
}

/// Drops members that depend on an earlier one, or vice versa: merged into one node they would close a cycle.
std::vector<Matcher::Member> Matcher::without_conflicts(const std::vector<Member>& members) {
  const auto depends = [&](const Member& reader, const Member& producer) {
    std::vector<NodeId> nodes;
    for (const int slot : pattern_.starred_outputs) nodes.push_back(producer.tensors[at(slot)].node);
    return std::any_of(pattern_.starred_inputs.begin(), pattern_.starred_inputs.end(),
                       [&](int slot) { return index_.depends_on(reader.tensors[at(slot)], nodes); });
  };
  std::vector<Member> accepted;
  for (const Member& member : members) {
    const bool conflicts = std::any_of(accepted.begin(), accepted.end(), [&](const Member& other) {
      return depends(member, other) || depends(other, member);
    });
    if (!conflicts) accepted.push_back(member);
  }
  if (accepted.size() < members.size()) conflicts_.push_back(key_of(members.front().tensors));
  return accepted;
}

}  // namespace rlopt
