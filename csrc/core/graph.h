// The graph: an immutable value. A GraphEdit makes changed copies that share everything unchanged.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/op.h"
#include "core/shared.h"

namespace rlopt {

using NodeId = int32_t;

/// Output `index` of node `node`; node -1 is an omitted optional input.
struct Value {
  NodeId node = -1;
  int32_t index = 0;
  bool present() const { return node >= 0; }
  auto operator<=>(const Value&) const = default;
};

/// Slot `slot` of node `node` reads the value; node -1: graph output `slot`.
struct Use {
  NodeId node = -1;
  int32_t slot = 0;
  auto operator<=>(const Use&) const = default;
};

/// External names of a node (ONNX node and output value names); they do not affect its meaning.
struct NodeNames {
  std::string node;
  std::vector<std::string> outputs;
};

/// One operator application. Immutable once in a graph.
struct Node {
  Op op = Op::Opaque;
  AttrsPtr attrs;
  std::vector<Value> inputs;
  std::shared_ptr<const std::vector<TensorType>> types;  // one per output
  std::shared_ptr<const NodeNames> names;                // never null; may hold empty strings for new nodes
  // Facts that depend on the graph around the node; edits keep them up to date.
  bool is_static = false;        // an expression over weights and constants only
  bool is_reproducible = false;  // has the same bits on every machine
  bool keeps_bits = false;       // reproducible, not static, and a later operator may jump at its last digit
  uint64_t identity = 0;         // which value of the initial graph, or which new expression, it computes

  const OpInfo& info() const { return op_info(op); }
  const AttrValue& attr(const std::string& name) const { return attrs->get(info(), name); }
  int64_t attr_int(const std::string& name) const { return std::get<int64_t>(attr(name)); }
  double attr_float(const std::string& name) const { return std::get<double>(attr(name)); }
  const std::string& attr_string(const std::string& name) const { return std::get<std::string>(attr(name)); }
  const Ints& attr_ints(const std::string& name) const { return std::get<Ints>(attr(name)); }
  int num_outputs() const { return static_cast<int>(types->size()); }
};
using NodePtr = std::shared_ptr<const Node>;

class Graph;
class GraphEdit;

/// `is_static`, `is_reproducible` and `keeps_bits` as derived from the node's neighbours.
struct Derived {
  bool is_static;
  bool is_reproducible;
  bool keeps_bits;
  Derived(const Graph& graph, NodeId id);
  bool operator==(const Node& node) const {
    return is_static == node.is_static && is_reproducible == node.is_reproducible &&
           keeps_bits == node.keeps_bits;
  }
};

/// Immutable dataflow graph. Node ids are stable across edits: a surviving node keeps its id, and its value
/// stays mathematically the same; ids of removed nodes are never reused.
class Graph {
 public:
  /// One past the largest id ever used; ids below it may be dead.
  NodeId end_id() const { return static_cast<NodeId>(nodes_.size()); }
  bool alive(NodeId id) const {
    return id >= 0 && id < end_id() && nodes_[static_cast<size_t>(id)] != nullptr;
  }
  /// The node, or the type of the value, for ids from outside: IndexError if it does not exist.
  const Node& at(NodeId id) const;
  const TensorType& at(Value value) const;
  /// The same without a check, for ids known to exist.
  const Node& node(NodeId id) const { return *nodes_[static_cast<size_t>(id)]; }
  /// Readers of any output of the node, in no particular order.
  const std::vector<Use>& uses(NodeId id) const { return *uses_[static_cast<size_t>(id)]; }
  int num_uses(Value value) const;
  const TensorType& type(Value value) const {
    return (*node(value.node).types)[static_cast<size_t>(value.index)];
  }
  bool is_static(Value value) const { return node(value.node).is_static; }

  const std::vector<Value>& outputs() const { return *outputs_; }
  const std::vector<std::string>& output_names() const { return *output_names_; }
  /// Input and Weight nodes in order of declaration (including unread ones).
  const std::vector<NodeId>& inputs() const { return *inputs_; }
  /// Live nodes except Input, Weight and Constant.
  int num_operators() const;
  /// Live nodes, producers before consumers; the order depends only on the structure and the ids.
  std::vector<NodeId> topological_order() const;
  /// Structural hash: equal for graphs that are equal up to node ids and names of inner nodes; the same in
  /// every process.
  uint64_t hash() const;
  /// An incremental hash for graphs derived by steps from one start: equal if the same steps were taken in
  /// another order. Not comparable between graphs that were built separately.
  uint64_t state_hash() const { return state_hash_; }
  /// A deep copy that shares no nodes: threads that edit copies of one graph would contend for the reference
  /// counts of what the copies share.
  Graph unshared() const;

 private:
  friend class GraphEdit;
  uint64_t identity_of(Value value) const;
  uint64_t term_of(NodeId id) const;
  uint64_t term_of_output(size_t slot) const;

  SharedVector<NodePtr> nodes_;
  SharedVector<Shared<std::vector<Use>>> uses_;
  Shared<std::vector<NodeId>> inputs_ = Shared(std::vector<NodeId>{});
  Shared<std::vector<Value>> outputs_ = Shared(std::vector<Value>{});
  std::shared_ptr<const std::vector<std::string>> output_names_ =
      std::make_shared<std::vector<std::string>>();
  int num_operators_ = 0;
  uint64_t state_hash_ = 0;  // a sum over nodes and outputs, so that the order of edits does not matter
};

/// A private working copy of a graph; `finish` returns the new graph.
class GraphEdit {
 public:
  GraphEdit() = default;
  explicit GraphEdit(Graph base) : graph_(std::move(base)), first_new_(graph_.end_id()), only_adds_(false) {}

  NodeId add_input(const std::string& name, TensorType type, bool is_weight);
  /// The caller infers the types: `types` has one entry per output. Throws IndexError for an input that does
  /// not exist.
  NodeId add_node(Op op, AttrsPtr attrs, std::vector<Value> inputs, std::vector<TensorType> types,
                  NodeNames names = {});
  /// Throws IndexError, without any change, for a value that does not exist.
  void set_outputs(std::vector<Value> outputs, std::vector<std::string> names);
  /// Makes all readers of `from` (and graph outputs) read `to`. Types must be equal: TypeError otherwise.
  void redirect(Value from, Value to);
  /// Removes `id` if nothing reads it, then its inputs recursively. Input and Weight nodes stay.
  void remove_if_dead(NodeId id);
  const Graph& graph() const { return graph_; }
  /// Existing nodes whose inputs or derived facts changed; may contain repeats and dead nodes.
  const std::vector<NodeId>& touched() const { return touched_; }
  /// Nodes that gained or lost a reader; may contain repeats and dead nodes.
  const std::vector<NodeId>& reread() const { return reread_; }
  Graph finish() { return std::move(graph_); }

 private:
  /// A producer, and the identity of one of its readers.
  struct Taken {
    NodeId producer;
    uint64_t identity;
    bool operator==(const Taken&) const = default;
  };
  struct HashTaken {
    size_t operator()(const Taken& taken) const {
      return hash_mix(taken.identity, static_cast<uint64_t>(taken.producer));
    }
  };

  uint64_t free_identity(NodeId producer, uint64_t identity);
  std::vector<Use>& writable_uses(NodeId of);
  void refresh(std::vector<NodeId> ids);
  void refresh_producers_of_new(NodeId id);
  void inherit_identity(Value from, Value to);
  Graph graph_;
  NodeId first_new_ = 0;
  bool only_adds_ = true;  // only nodes were added, as in building a graph: taken identities stay so
  // Used only while `only_adds_`: the identities of each producer's readers, and for each the last one of the
  // chain of taken identities that begins with it. Without it, n readers of a value cost n * n.
  std::unordered_map<Taken, uint64_t, HashTaken> taken_;
  std::vector<NodeId> touched_;
  std::vector<NodeId> reread_;
};

}  // namespace rlopt
