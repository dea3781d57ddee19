#include "tools/verify/draw.h"

#include <algorithm>

#include "infer/infer.h"

namespace rlopt {

namespace {

constexpr int kTriesPerNode = 10;
constexpr int kTriesPerInstance = 250;

Ints sizes_of(const TensorType& type) {
  Ints sizes;
  for (const Dim& dim : type.dims) sizes.push_back(dim.value());
  return sizes;
}

}  // namespace

Drawer::Drawer(const Library& library, int substitution, Random& random)
    : substitution_(library.substitutions()[at(substitution)]),
      pattern_(library.pattern(substitution)),
      random_(random) {}

std::optional<Instance> Drawer::draw() {
  num_members_ = substitution_.has_family ? random_.one_of({2, 2, 2, 3, 3, 3, 4, 4, 5, 6}) : 0;
  is_alike_ = random_.chance(0.5);
  proposer_.emplace(random_);
  hints_ = find_hints(substitution_, random_);
  tasks_.clear();
  State state;
  state.binding.tensors.assign(pattern_.num_tensors, Binding::kUnbound);
  state.binding.attributes.assign(substitution_.attributes.size(), nullptr);
  state.binding.rests.assign(substitution_.rests.size(), nullptr);
  state.binding.family_tensors.assign(pattern_.num_tensors,
                                      std::vector<Value>(at(num_members_), Binding::kUnbound));
  state.binding.family_attributes.assign(substitution_.attributes.size(),
                                         std::vector<const AttrValue*>(at(num_members_), nullptr));
  for (size_t i = 0; i < pattern_.lines.size(); ++i) {
    const bool per_member = pattern_.lines[i].kind == Line::Kind::PerMember;
    state.nodes.emplace_back(per_member ? at(num_members_) : 1, -1);
    for (int m = per_member ? 0 : -1; m < (per_member ? num_members_ : 0); ++m) {
      tasks_.push_back({static_cast<int>(i), m});
    }
  }
  budget_ = kTriesPerInstance;
  result_.reset();
  place(0, state);
  return std::move(result_);
}

/// Depth-first search over the nodes, a few proposals for each.
bool Drawer::place(size_t task, const State& state) {
  if (task == tasks_.size()) {
    result_ = finish(state);
    return result_.has_value();
  }
  for (int i = 0; i < kTriesPerNode && budget_ > 0; ++i) {
    --budget_;
    State next = state;
    if (extend(tasks_[task], next) && place(task + 1, next)) return true;
  }
  return false;
}

bool Drawer::extend(const Task& task, State& state) {
  const PatternLine& line = pattern_.lines[at(task.line)];
  std::vector<Place> places;
  Draft draft = make_draft(task, state, places);
  const bool shapes_follow = line.op == Op::Reshape || line.op == Op::Expand || line.op == Op::Slice;
  if (shapes_follow && !draft.in[0].shape) {
    // Conditions on the output constrain the input, so draw it first.
    Draft first;
    first.op = Op::Identity;
    first.in = {draft.in[0]};
    if (!proposer_->propose(first)) return false;
    make_input(first.in[0], places[0], State(state), state);
    places.clear();
    draft = make_draft(task, state, places);
  }
  if (!proposer_->propose(draft)) return false;
  const State before = state;
  std::vector<Value> inputs;
  DType dtype = DType::f32;
  for (size_t i = 0; i < draft.in.size(); ++i) {
    const bool is_literal =
        places[i].slot >= 0 && substitution_.tensors[at(places[i].slot)].literal.has_value();
    if (!draft.in[i].is_omitted && !is_literal) {
      dtype = draft.in[i].dtype;
      break;
    }
  }
  for (size_t i = 0; i < draft.in.size(); ++i) {
    if (draft.in[i].is_omitted) {
      inputs.push_back({});
      continue;
    }
    if (!draft.in[i].shape) return false;
    if (substitution_.tensors[at(places[i].slot)].literal) draft.in[i].dtype = dtype;
    const Value bound = state.binding.tensor(places[i].slot, places[i].member);
    inputs.push_back(bound == Binding::kUnbound ? make_input(draft.in[i], places[i], before, state) : bound);
  }
  std::vector<std::pair<std::string, AttrValue>> given;
  const OpInfo& info = op_info(line.op);
  for (size_t i = 0; i < info.attrs.size(); ++i) given.emplace_back(info.attrs[i].name, *draft.attrs[i]);
  try {
    const NodeId id = add_inferred(state.edit, line.op, Attrs::make(line.op, given), std::move(inputs));
    for (const TensorType& type : *state.edit.graph().node(id).types) {
      if (!type.is_static()) return false;
    }
    state.nodes[at(task.line)][at(std::max(task.member, 0))] = id;
    const bool is_whole = line.kind == Line::Kind::DefinesFamily;
    const int outs = is_whole ? num_members_ : static_cast<int>(line.outs.size());
    if (state.edit.graph().node(id).num_outputs() != outs) return false;
    bind_outputs(task, id, state);
  } catch (const TypeError&) {
    return false;  // the proposal does not fit after all
  }
  return checks_hold(task, state);
}

Draft Drawer::make_draft(const Task& task, const State& state, std::vector<Place>& places) {
  const PatternLine& line = pattern_.lines[at(task.line)];
  Draft draft;
  draft.op = line.op;
  draft.attrs.resize(op_info(line.op).attrs.size());
  draft.num_outputs =
      line.kind == Line::Kind::DefinesFamily ? num_members_ : static_cast<int>(line.outs.size());
  for (size_t i = 0; i < line.ins.size(); ++i) {
    const int slot = line.ins[i];
    if (slot == Line::kOmitted) {
      places.push_back({-1, -1});
    } else if (static_cast<int>(i) == line.family_in) {
      for (int m = 0; m < num_members_; ++m) places.push_back({slot, m});
    } else {
      places.push_back({slot, substitution_.tensors[at(slot)].starred ? task.member : -1});
    }
  }
  for (const Place& each : places) {
    DraftInput input;
    input.is_omitted = each.slot < 0;
    if (!input.is_omitted) {
      const Value value = state.binding.tensor(each.slot, each.member);
      if (value != Binding::kUnbound) {
        const TensorType& type = state.edit.graph().type(value);
        input.shape = sizes_of(type);
        input.dtype = type.dtype;
        input.is_known = true;
      } else if (substitution_.tensors[at(each.slot)].literal) {
        input.shape = random_.chance(0.8) ? Ints{} : Ints{1};
      } else {
        input.hint = input_hint(state, each);
        const Value first = each.member > 0 ? state.binding.tensor(each.slot, 0) : Binding::kUnbound;
        if (first != Binding::kUnbound && !input.hint.shape && is_alike_ && random_.chance(0.7)) {
          input.hint.shape = sizes_of(state.edit.graph().type(first));
        }
      }
    }
    draft.in.push_back(std::move(input));
  }
  for (const auto& [index, value] : line.equal_attrs) draft.attrs[at(index)] = value;
  for (const auto& [index, slot] : line.bound_attrs) {
    const int member = substitution_.attributes[at(slot)].starred ? task.member : -1;
    const AttrValue* bound = state.binding.attribute(slot, member);
    if (bound != nullptr) draft.attrs[at(index)] = *bound;
  }
  if (line.rest >= 0 && state.binding.rests[at(line.rest)] != nullptr) {
    for (const int index : substitution_.rests[at(line.rest)].attributes) {
      draft.attrs[at(index)] = state.binding.rests[at(line.rest)]->values()[at(index)];
    }
  }
  if (!line.outs.empty() && line.outs[0] != Line::kOmitted) {
    draft.out_hint =
        input_hint(state, {line.outs[0], substitution_.tensors[at(line.outs[0])].starred ? task.member : -1});
  }
  hint_attributes(task, state, draft);
  return draft;
}

/// A new Input, Weight or Constant for a free variable.
Value Drawer::make_input(const DraftInput& input, const Place& place, const State& before, State& state) {
  const TensorVariable& tensor = substitution_.tensors[at(place.slot)];
  TensorType type{input.dtype, true, {}};
  for (const int64_t size : *input.shape) type.dims.emplace_back(size);
  const auto hinted = value_hint(before, place);
  const bool is_constant = tensor.literal || hinted || has_hint(Hint::Target::Constant, place.slot);
  Value value;
  if (is_constant) {
    double number =
        tensor.literal ? *tensor.literal : hinted.value_or(random_.one_of({0.5, 2.0, -1.5, 3.0, 0.125}));
    if (is_integer(input.dtype) && !tensor.literal && !hinted) {
      // Indices: small, and often consecutive.
      const Value first = place.member > 0 ? state.binding.tensor(place.slot, 0) : Binding::kUnbound;
      const auto start =
          first == Binding::kUnbound ? std::nullopt : scalar_constant(state.edit.graph(), first);
      number =
          start && random_.chance(0.7) ? *start + place.member : static_cast<double>(random_.between(0, 2));
    }
    const AttrsPtr attrs =
        is_floating(input.dtype)
            ? Attrs::make(Op::Constant, {{"value", Floats{number}}})
            : Attrs::make(Op::Constant, {{"int_value", Ints{static_cast<int64_t>(number)}}});
    value = {state.edit.add_node(Op::Constant, attrs, {}, {type}), 0};
  } else {
    const bool is_weight = has_hint(Hint::Target::Static, place.slot) || random_.chance(0.35);
    value = {state.edit.add_input(name_of(place), type, is_weight), 0};
  }
  state.binding.tensor(place.slot, place.member) = value;
  return value;
}

std::string Drawer::name_of(const Place& place) const {
  const std::string& name = substitution_.tensors[at(place.slot)].name;
  return place.member < 0 ? name : name + "_" + std::to_string(place.member);
}

void Drawer::bind_outputs(const Task& task, NodeId id, State& state) const {
  const PatternLine& line = pattern_.lines[at(task.line)];
  const Node& node = state.edit.graph().node(id);
  for (int i = 0; i < node.num_outputs(); ++i) {
    const bool is_whole = line.kind == Line::Kind::DefinesFamily;
    const int slot = line.outs[is_whole ? 0 : at(i)];
    if (slot != Line::kOmitted) state.binding.tensor(slot, is_whole ? i : task.member) = {id, i};
  }
  for (const auto& [index, slot] : line.bound_attrs) {
    const int member = substitution_.attributes[at(slot)].starred ? task.member : -1;
    state.binding.attribute(slot, member) = &node.attrs->values()[at(index)];
  }
  if (line.rest >= 0) state.binding.rests[at(line.rest)] = node.attrs.get();
}

bool Drawer::is_bound(const Expr& expr, const State& state, int member) const {
  if (expr.kind == Expr::Kind::Gather) {
    for (int m = 0; m < num_members_; ++m) {
      if (!is_bound(*expr.args[0], state, m)) return false;
    }
    return true;
  }
  if (expr.kind == Expr::Kind::Variable) {
    const int which = expr.starred ? member : -1;
    if (expr.is_tensor) return state.binding.tensor(expr.slot, which) != Binding::kUnbound;
    return state.binding.attribute(expr.slot, which) != nullptr;
  }
  return std::all_of(expr.args.begin(), expr.args.end(),
                     [&](const ExprPtr& arg) { return is_bound(*arg, state, member); });
}

bool Drawer::check_holds(const PatternCheck& check, const State& state, int num_members, int member) const {
  const int which = check.expr->starred ? member : -1;
  const Bound value = evaluate(*check.expr, state.edit.graph(), state.binding, num_members, which);
  if (check.line < 0) return value == Bound{true};
  const auto& nodes = state.nodes[at(check.line)];
  const NodeId id = nodes[nodes.size() > 1 ? at(std::max(member, 0)) : 0];
  if (id < 0) return true;
  const AttrValue& found = state.edit.graph().node(id).attrs->values()[at(check.attribute)];
  return bounds_equal(to_bound(found), value).value_or(false);
}

/// Whether all conditions that are already decidable hold.
bool Drawer::checks_hold(const Task& task, const State& state) const {
  for (const PatternCheck& check : pattern_.checks) {
    if (check.level == PatternCheck::Level::Same) {
      // If it holds for the whole family, it holds for any prefix of it.
      int count = 0;
      while (count < num_members_ && is_bound(*check.expr->args[0]->args[0], state, count)) ++count;
      if (count >= 2 && !check_holds(check, state, count, -1)) return false;
      continue;
    }
    const bool is_for_each = check.expr->starred || (check.line >= 0 && pattern_.lines[at(check.line)].kind ==
                                                                            Line::Kind::PerMember);
    if (!is_for_each) {
      if (is_bound(*check.expr, state, -1) && !check_holds(check, state, num_members_, -1)) return false;
      continue;
    }
    for (int m = 0; m < num_members_; ++m) {
      if (task.member >= 0 && m != task.member) continue;
      if (is_bound(*check.expr, state, m) && !check_holds(check, state, num_members_, m)) return false;
    }
  }
  return true;
}

std::optional<Instance> Drawer::finish(State state) const {
  Instance instance;
  std::vector<std::string> names;
  const auto sort_out = [&](Value value) {
    if (value == Binding::kUnbound) return;
    if (state.edit.graph().num_uses(value) > 0) {
      instance.intermediates.push_back(value);
    } else {
      names.push_back("out" + std::to_string(names.size()));
      instance.results.push_back(value);
    }
  };
  for (size_t i = 0; i < substitution_.tensors.size(); ++i) {
    const TensorVariable& tensor = substitution_.tensors[i];
    if (tensor.is_new || tensor.producer < 0) continue;
    for (const Value value : state.binding.values(static_cast<int>(i), tensor.starred)) sort_out(value);
  }
  // An output of the pattern that the pattern reads is also a graph output: it is what gets replaced.
  for (const Output& output : substitution_.outputs) {
    if (substitution_.tensors[at(output.old_slot)].starred) continue;
    const Value value = state.binding.tensors[at(output.old_slot)];
    if (std::find(instance.results.begin(), instance.results.end(), value) != instance.results.end())
      continue;
    names.push_back("out" + std::to_string(names.size()));
    instance.results.push_back(value);
  }
  state.edit.set_outputs(instance.results, names);
  instance.graph = state.edit.finish();
  return instance;
}

}  // namespace rlopt
