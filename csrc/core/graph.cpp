#include "core/graph.h"

#include <algorithm>
#include <iterator>
#include <queue>
#include <unordered_map>
#include <unordered_set>

#include "core/unique.h"

namespace rlopt {

namespace {

bool is_leaf(Op op) { return op == Op::Input || op == Op::Weight || op == Op::Constant; }

const std::shared_ptr<const NodeNames>& no_names() {
  static const auto names = std::make_shared<const NodeNames>();
  return names;
}

void require_sizes(const TensorType& type) {
  for (const Dim& dim : type.dims) {
    if (dim.is_static() && dim.value() < 0) throw TypeError("a size below 0 in " + type.str());
  }
}

/// The nodes that a node reads, without repeats.
std::vector<NodeId> producers_of(const Node& node) {
  std::vector<NodeId> ids;
  ids.reserve(node.inputs.size());
  for (const Value& input : node.inputs) {
    if (input.present()) ids.push_back(input.node);
  }
  sort_unique(ids);
  return ids;
}

uint64_t hash_types(uint64_t hash, const Node& node) {
  for (const auto& type : *node.types) hash = hash_mix(hash, hash_string(type.str()));
  return hash;
}

}  // namespace

const Node& Graph::at(NodeId id) const {
  if (!alive(id)) throw IndexError("the graph has no node " + std::to_string(id));
  return node(id);
}

const TensorType& Graph::at(Value value) const {
  if (!value.present()) throw IndexError("an omitted input is no value of the graph");
  const Node& producer = at(value.node);
  if (value.index < 0 || value.index >= producer.num_outputs()) {
    throw IndexError("node " + std::to_string(value.node) + " (" + producer.info().name + ") has " +
                     std::to_string(producer.num_outputs()) + " outputs, no output " +
                     std::to_string(value.index));
  }
  return type(value);
}

int Graph::num_uses(Value value) const {
  int count = 0;
  for (const Use& use : uses(value.node)) {
    const Value read = use.node < 0 ? outputs()[static_cast<size_t>(use.slot)]
                                    : node(use.node).inputs[static_cast<size_t>(use.slot)];
    count += read.index == value.index ? 1 : 0;
  }
  return count;
}

Graph Graph::unshared() const {
  Graph copy = *this;
  for (size_t id = 0; id < nodes_.size(); ++id) {
    if (nodes_[id] == nullptr) continue;
    auto node = std::make_shared<Node>(*nodes_[id]);
    node->attrs = std::make_shared<const Attrs>(*node->attrs);
    node->types = std::make_shared<const std::vector<TensorType>>(*node->types);
    node->names = std::make_shared<const NodeNames>(*node->names);
    copy.nodes_.set(id, std::move(node));
    copy.uses_.set(id, Shared(std::vector<Use>(*uses_[id])));
  }
  copy.inputs_ = Shared(std::vector<NodeId>(*inputs_));
  copy.outputs_ = Shared(std::vector<Value>(*outputs_));
  copy.output_names_ = std::make_shared<const std::vector<std::string>>(*output_names_);
  return copy;
}

int Graph::num_operators() const { return num_operators_; }

std::vector<NodeId> Graph::topological_order() const {
  const auto end = static_cast<size_t>(end_id());
  std::vector<int> waiting(end, 0);
  std::priority_queue<NodeId, std::vector<NodeId>, std::greater<>> ready;
  size_t live = 0;
  for (NodeId id = 0; id < end_id(); ++id) {
    if (!alive(id)) continue;
    ++live;
    for (const Value& input : node(id).inputs) waiting[static_cast<size_t>(id)] += input.present() ? 1 : 0;
    if (waiting[static_cast<size_t>(id)] == 0) ready.push(id);
  }
  std::vector<NodeId> order;
  order.reserve(live);
  while (!ready.empty()) {
    const NodeId id = ready.top();
    ready.pop();
    order.push_back(id);
    for (const Use& use : uses(id)) {
      if (use.node >= 0 && --waiting[static_cast<size_t>(use.node)] == 0) ready.push(use.node);
    }
  }
  if (order.size() != live) throw TypeError("graph has a cycle");
  return order;
}

uint64_t Graph::hash() const {
  std::unordered_map<NodeId, uint64_t> input_position;
  for (size_t i = 0; i < inputs().size(); ++i) input_position[inputs()[i]] = i;
  std::vector<uint64_t> hashes(static_cast<size_t>(end_id()), 0);
  for (const NodeId id : topological_order()) {
    const Node& each = node(id);
    uint64_t hash = hash_mix(static_cast<uint64_t>(each.op), hash_attrs(*each.attrs));
    if (each.op == Op::Input || each.op == Op::Weight) hash = hash_mix(hash, input_position.at(id));
    if (is_leaf(each.op) || each.op == Op::Opaque) hash = hash_types(hash, each);

    for (const Value& input : each.inputs) {
      const uint64_t one = input.present() ? hash_mix(hashes[static_cast<size_t>(input.node)],
                                                      static_cast<uint64_t>(input.index))
                                           : 0;
      hash = hash_mix(hash, one);
    }
    hashes[static_cast<size_t>(id)] = hash;
  }
  uint64_t total = outputs().size();
  for (const Value& output : outputs()) {
    total = hash_mix(total,
                     hash_mix(hashes[static_cast<size_t>(output.node)], static_cast<uint64_t>(output.index)));
  }
  return total;
}

uint64_t Graph::identity_of(Value value) const {
  if (!value.present()) return 1;
  const Node& producer = node(value.node);
  return producer.num_outputs() == 1 ? producer.identity
                                     : hash_mix(producer.identity, static_cast<uint64_t>(value.index) + 2);
}

/// The node's share of the graph hash: identity, operator, attributes and inputs. Constants have no share:
/// their readers include their identity, and whether several nodes read the same constant is not a local
/// property.
uint64_t Graph::term_of(NodeId id) const {
  const Node& each = node(id);
  if (each.op == Op::Constant) return 0;
  uint64_t hash =
      hash_mix(each.identity, hash_mix(static_cast<uint64_t>(each.op), each.attrs->fingerprint()));
  for (const Value& input : each.inputs) hash = hash_mix(hash, identity_of(input));
  return hash;
}

uint64_t Graph::term_of_output(size_t slot) const {
  return hash_mix(hash_mix(0x6f7574, slot), identity_of(outputs()[slot]));
}

NodeId GraphEdit::add_input(const std::string& name, TensorType type, bool is_weight) {
  require_sizes(type);
  Node node;
  node.op = is_weight ? Op::Weight : Op::Input;
  node.attrs = Attrs::make(node.op, {});
  node.types = std::make_shared<const std::vector<TensorType>>(1, std::move(type));
  node.names = std::make_shared<const NodeNames>(NodeNames{name, {name}});
  node.is_static = is_weight;
  node.is_reproducible = true;
  node.identity = hash_mix(static_cast<uint64_t>(node.op), graph_.inputs().size());
  const NodeId id = graph_.end_id();
  graph_.nodes_.push_back(std::make_shared<const Node>(std::move(node)));
  graph_.uses_.push_back(Shared(std::vector<Use>{}));
  graph_.inputs_.writable().push_back(id);
  graph_.state_hash_ += graph_.term_of(id);
  return id;
}

NodeId GraphEdit::add_node(Op op, AttrsPtr attrs, std::vector<Value> inputs, std::vector<TensorType> types,
                           NodeNames names) {
  const OpInfo& info = op_info(op);
  if (types.empty() || (info.num_outputs >= 0 && types.size() != static_cast<size_t>(info.num_outputs))) {
    throw TypeError(info.name + ": " + std::to_string(types.size()) + " types for its outputs");
  }
  std::for_each(types.begin(), types.end(), require_sizes);
  const NodeId id = graph_.end_id();
  Node node;
  node.op = op;
  node.attrs = std::move(attrs);
  for (const Value& input : inputs) {
    if (input.present()) graph_.at(input);
  }
  node.inputs = std::move(inputs);
  node.types = std::make_shared<const std::vector<TensorType>>(std::move(types));
  node.names = names.node.empty() && names.outputs.empty()
                   ? no_names()
                   : std::make_shared<const NodeNames>(std::move(names));
  node.identity = hash_mix(static_cast<uint64_t>(op), node.attrs->fingerprint());
  for (const Value& input : node.inputs) node.identity = hash_mix(node.identity, graph_.identity_of(input));
  if (op == Op::Opaque) node.identity = hash_mix(node.identity, static_cast<uint64_t>(id));
  if (!node.inputs.empty() && node.inputs[0].present()) {
    node.identity = free_identity(node.inputs[0].node, node.identity);
  }
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    if (!node.inputs[i].present()) continue;
    writable_uses(node.inputs[i].node).push_back({id, static_cast<int32_t>(i)});
    if (only_adds_) taken_.try_emplace({node.inputs[i].node, node.identity}, node.identity);
  }
  graph_.nodes_.push_back(std::make_shared<const Node>(std::move(node)));
  graph_.uses_.push_back(Shared(std::vector<Use>{}));
  if (!is_leaf(op)) ++graph_.num_operators_;
  graph_.state_hash_ += graph_.term_of(id);
  refresh({id});
  refresh_producers_of_new(id);
  return id;
}

/// Two nodes that compute the same value are still distinct: exchanging their readers gives another graph. So
/// if another reader of the node's first producer already has its identity, the node takes the next free one.
uint64_t GraphEdit::free_identity(NodeId producer, uint64_t identity) {
  if (only_adds_) {
    const auto found = taken_.find({producer, identity});
    if (found == taken_.end()) return identity;
    uint64_t next = found->second;  // all before it are taken
    do {
      next = hash_mix(next, 1);
    } while (taken_.contains({producer, next}));
    found->second = next;
    return next;
  }
  const std::vector<Use>& siblings = graph_.uses(producer);
  const auto is_taken = [&](const Use& use) {
    return use.node >= 0 && graph_.node(use.node).identity == identity;
  };
  if (std::none_of(siblings.begin(), siblings.end(), is_taken)) return identity;
  std::unordered_set<uint64_t> taken;  // otherwise thousands of equal nodes probe through each other
  for (const Use& use : siblings) {
    if (use.node >= 0) taken.insert(graph_.node(use.node).identity);
  }
  while (taken.contains(identity)) identity = hash_mix(identity, 1);
  return identity;
}

/// A new node that replaces a value inherits its identity, because it computes that value: so the sum does
/// not depend on the order in which neighbouring values were replaced.
void GraphEdit::inherit_identity(Value from, Value to) {
  if (to.node < first_new_ || graph_.node(to.node).inputs.empty()) return;
  std::vector<Use> readers = graph_.uses(to.node);
  std::sort(readers.begin(), readers.end());
  const auto add_terms = [&](uint64_t sign) {
    graph_.state_hash_ += sign * graph_.term_of(to.node);
    NodeId last = -1;
    for (const Use& use : readers) {
      if (use.node < 0) {
        graph_.state_hash_ += sign * graph_.term_of_output(static_cast<size_t>(use.slot));
      } else if (use.node != last) {
        graph_.state_hash_ += sign * graph_.term_of(use.node);
      }
      last = use.node;
    }
  };
  add_terms(~uint64_t{0});
  auto node = std::make_shared<Node>(graph_.node(to.node));
  const uint64_t identity = graph_.identity_of(from);
  // With several outputs each is combined; the order does not matter.
  node->identity = node->num_outputs() == 1
                       ? identity
                       : node->identity + hash_mix(identity, static_cast<uint64_t>(to.index));
  graph_.nodes_.set(static_cast<size_t>(to.node), std::move(node));
  add_terms(1);
}

void GraphEdit::set_outputs(std::vector<Value> outputs, std::vector<std::string> names) {
  if (outputs.size() != names.size()) throw TypeError("outputs and their names differ in number");
  for (const Value& output : outputs) graph_.at(output);
  std::vector<NodeId> former;
  for (size_t i = 0; i < graph_.outputs().size(); ++i) {
    graph_.state_hash_ -= graph_.term_of_output(i);
    former.push_back(graph_.outputs()[i].node);
  }
  sort_unique(former);
  for (const NodeId id : former) {
    std::erase_if(writable_uses(id), [](const Use& use) { return use.node < 0; });
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    writable_uses(outputs[i].node).push_back({-1, static_cast<int32_t>(i)});
  }
  graph_.outputs_ = Shared(std::move(outputs));
  graph_.output_names_ = std::make_shared<const std::vector<std::string>>(std::move(names));
  for (size_t i = 0; i < graph_.outputs().size(); ++i) graph_.state_hash_ += graph_.term_of_output(i);
}

void GraphEdit::redirect(Value from, Value to) {
  if (from == to) return;
  if (graph_.type(from) != graph_.type(to)) {
    throw TypeError("redirect: value of type " + graph_.type(from).str() + " replaced by one of type " +
                    graph_.type(to).str());
  }
  only_adds_ = false;
  inherit_identity(from, to);
  const auto reads = [&](const Use& use) {
    return from == (use.node < 0 ? graph_.outputs()[static_cast<size_t>(use.slot)]
                                 : graph_.node(use.node).inputs[static_cast<size_t>(use.slot)]);
  };
  std::vector<Use> moved;
  std::copy_if(graph_.uses(from.node).begin(), graph_.uses(from.node).end(), std::back_inserter(moved),
               reads);
  std::erase_if(writable_uses(from.node), reads);
  std::vector<Use>& uses = writable_uses(to.node);
  uses.insert(uses.end(), moved.begin(), moved.end());
  std::sort(moved.begin(), moved.end());  // groups the slots of each reader, so that it is copied once
  std::vector<NodeId> around{to.node, from.node};
  for (size_t i = 0; i < moved.size();) {
    const NodeId reader = moved[i].node;
    if (reader < 0) {
      const auto slot = static_cast<size_t>(moved[i++].slot);
      graph_.state_hash_ -= graph_.term_of_output(slot);
      graph_.outputs_.writable()[slot] = to;
      graph_.state_hash_ += graph_.term_of_output(slot);
      continue;
    }
    graph_.state_hash_ -= graph_.term_of(reader);
    auto node = std::make_shared<Node>(graph_.node(reader));
    for (; i < moved.size() && moved[i].node == reader; ++i) {
      node->inputs[static_cast<size_t>(moved[i].slot)] = to;
    }
    const std::vector<NodeId> producers = producers_of(*node);
    graph_.nodes_.set(static_cast<size_t>(reader), std::move(node));
    graph_.state_hash_ += graph_.term_of(reader);
    touched_.push_back(reader);
    around.push_back(reader);
    around.insert(around.end(), producers.begin(), producers.end());
  }
  sort_unique(around);
  refresh(std::move(around));
}

void GraphEdit::remove_if_dead(NodeId start) {
  only_adds_ = false;
  std::vector<NodeId> stack{start};
  while (!stack.empty()) {
    const NodeId id = stack.back();
    stack.pop_back();
    if (!graph_.alive(id) || !graph_.uses(id).empty()) continue;
    const NodePtr node = graph_.nodes_[static_cast<size_t>(id)];  // keeps it readable after removal
    if (node->op == Op::Input || node->op == Op::Weight) continue;
    if (!is_leaf(node->op)) --graph_.num_operators_;
    graph_.state_hash_ -= graph_.term_of(id);
    graph_.nodes_.set(static_cast<size_t>(id), nullptr);
    std::vector<NodeId> producers = producers_of(*node);
    for (const NodeId producer : producers) {
      std::erase_if(writable_uses(producer), [&](const Use& use) { return use.node == id; });
      stack.push_back(producer);
    }
    refresh(std::move(producers));  // once the dead node no longer reads any of them
  }
}

std::vector<Use>& GraphEdit::writable_uses(NodeId of) {
  reread_.push_back(of);
  return graph_.uses_.writable(static_cast<size_t>(of)).writable();
}

}  // namespace rlopt
