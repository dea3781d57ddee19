// Keys of the price table: 64-bit hashes of everything that affects a node's time.
#include "cost/contractions.h"
#include "cost/cost.h"

namespace rlopt {

namespace {

constexpr uint64_t kOwnSeed = 0x6f776e2d6b657931ULL;
constexpr uint64_t kContextSeed = 0x6e65696768626f75ULL;

/// By name: an operator's number changes when one is added to the table.
uint64_t op_hash(Op op) {
  static const std::vector<uint64_t> hashes = [] {
    std::vector<uint64_t> all;
    for (const OpInfo& info : all_ops()) all.push_back(hash_string(info.name));
    return all;
  }();
  return hashes[at(op)];
}

uint64_t type_hash(uint64_t hash, const TensorType& type, const Sizes& sizes) {
  hash = hash_mix(hash, static_cast<uint64_t>(type.dtype));
  hash = hash_mix(hash, type.has_rank ? type.dims.size() : ~uint64_t{0});
  for (const Dim& dim : type.dims) hash = hash_mix(hash, static_cast<uint64_t>(sizes.extent(dim)));
  return hash;
}

/// How an executor sees a neighbour: its kind, and whether it is a contraction that can absorb others.
uint64_t kind(const Graph& graph, const Node& node) {
  const auto cost_class = static_cast<uint64_t>(node.info().cost_class);
  return 2 * cost_class + (is_packable(graph, node) ? 1 : 0);
}

}  // namespace

const double* PriceTable::find(const NodeKeys& keys) const {
  auto found = prices_.find(keys.context);
  if (found == prices_.end()) found = prices_.find(keys.own);
  return found == prices_.end() ? nullptr : &found->second;
}

NodeKeys CostModel::keys(const Graph& graph, NodeId id) const {
  const Node& node = graph.node(id);
  NodeKeys keys;
  keys.own = hash_mix(kOwnSeed, op_hash(node.op));
  // All inputs cost the same small check at each call, whatever their contents.
  if (node.op == Op::Input || node.op == Op::Weight) {
    keys.context = hash_mix(kContextSeed, keys.own);
    return keys;
  }
  for (const AttrValue& value : node.attrs->values())
    keys.own = hash_value(hash_mix(keys.own, value.index()), value, Zeros::Distinct);
  for (const TensorType& type : *node.types) keys.own = type_hash(keys.own, type, sizes_);
  for (const Value& input : node.inputs) {
    keys.own = hash_mix(keys.own, !input.present() ? 0 : graph.is_static(input) ? 1 : 2);
    if (input.present()) keys.own = type_hash(keys.own, graph.type(input), sizes_);
  }
  keys.context = hash_mix(kContextSeed, keys.own);
  for (const Value& input : node.inputs) {
    if (!input.present() || graph.is_static(input)) continue;
    const bool is_last_reader = graph.uses(input.node).size() == 1;
    keys.context = hash_mix(keys.context, 2 * kind(graph, graph.node(input.node)) + (is_last_reader ? 1 : 0));
  }
  const std::vector<Use>& uses = graph.uses(id);
  keys.context = hash_mix(keys.context, uses.size() > 1 ? 2 : uses.size());
  if (uses.size() == 1 && uses.front().node >= 0) {
    const Node& reader = graph.node(uses.front().node);
    // What a contraction can absorb depends on the exact operator after it.
    const bool may_fuse = is_packable(graph, node);
    keys.context = hash_mix(keys.context, may_fuse ? op_hash(reader.op) : kind(graph, reader));
  }
  return keys;
}

}  // namespace rlopt
