#include "cost/cost.h"

#include <algorithm>
#include <cmath>

namespace rlopt {

namespace {

/// Elementwise work that compilers fuse with its producers.
bool is_elementwise(const Node& node) {
  const CostClass cost_class = node.info().cost_class;
  return cost_class == CostClass::Elementwise || cost_class == CostClass::Transcendental;
}

/// The axes along which a node cuts a tensor into parts; none if it does not cut.
Ints cut_axes(const Node& node) {
  if (node.op == Op::Split) return {node.attr_int("axis")};
  if (node.op == Op::Slice) return node.attr_ints("axes");
  return {};
}

/// Whether the core does not know an operator that is one of ONNX's recurrent layers, of [steps, batch,
/// number].
bool is_recurrent(const Graph& graph, const Node& node) {
  const std::string& name = node.attr_string("op");
  const auto is = [&](const char* kind) { return name.rfind(kind, 0) == 0; };
  if (!is("ai.onnx::LSTM#") && !is("ai.onnx::GRU#") && !is("ai.onnx::RNN#")) return false;
  return node.inputs.size() > 2 && graph.type(node.inputs[0]).rank() == 3;
}

}  // namespace

double CostModel::outer_extent(const Dims& dims, int64_t axis) const {
  const auto end = static_cast<size_t>(axis < 0 ? axis + static_cast<int64_t>(dims.size()) : axis);
  double outer = 1;
  for (size_t i = 0; i < end; ++i) outer *= sizes_.extent(dims[i]);
  return outer;
}

/// Whether, without strides, a result cannot be a view of its operand. Images are stored with channels
/// innermost or in blocks, so no part of one is contiguous.
bool CostModel::copies_without_strides(const Graph& graph, const Node& node) const {
  if (node.op == Op::Transpose || node.op == Op::Expand) return true;
  for (const int64_t axis : cut_axes(node)) {
    const Dims& dims = graph.type(node.inputs[0]).dims;
    if (dims.size() > 3 || outer_extent(dims, axis) != 1) return true;
  }
  return false;
}

/// Whether a result cannot be a view of its operand. With strides this applies to a reshape of a permuted or
/// expanded tensor, or of a part cut out of an inner axis that the reshape merges with the axis before it.
bool CostModel::copies(const Graph& graph, const Node& node) const {
  if (device_.copies_cuts) return copies_without_strides(graph, node);
  if (node.op != Op::Reshape && node.op != Op::Flatten) return false;
  const Value operand = node.inputs[0];
  const Node& producer = graph.node(operand.node);
  if (producer.op == Op::Transpose || producer.op == Op::Expand) return true;
  const Dims& dims = graph.type(operand).dims;
  for (const int64_t axis : cut_axes(producer)) {
    const double outer = outer_extent(dims, axis);
    double prefix = 1;
    bool keeps_cut = outer == 1;
    for (const Dim& dim : node.types->front().dims)
      keeps_cut = (prefix *= sizes_.extent(dim)) == outer || keeps_cut;
    if (!keeps_cut) return true;
  }
  return false;
}

double CostModel::read_bytes(const Graph& graph, const Node& node) const {
  double bytes = 0;
  for (const Value& input : node.inputs) bytes += input.present() ? sizes_.bytes(graph.type(input)) : 0.0;
  return bytes;
}

double CostModel::written_bytes(const Node& node) const {
  double bytes = 0;
  for (const TensorType& type : *node.types) bytes += sizes_.bytes(type);
  return bytes;
}

double CostModel::stream_us(double bytes) const {
  const double rate = bytes <= device_.cache_bytes ? device_.cache_bytes_per_us : device_.bytes_per_us;
  return bytes / rate;
}

/// Whether the node is fused into the kernel that makes its first operand.
bool CostModel::is_fused_away(const Graph& graph, const Node& node) const {
  if (!is_elementwise(node)) return false;
  for (const Value& input : node.inputs) {
    if (!input.present() || graph.is_static(input)) continue;
    const Node& producer = graph.node(input.node);
    if (graph.uses(input.node).size() != 1) continue;
    if (producer.types->front().dims != node.types->front().dims) continue;
    if (device_.fuses_elementwise && is_elementwise(producer)) return true;
    if (device_.fuses_epilogues && is_packable(graph, producer) && node.inputs.size() == 1) return true;
  }
  return false;
}

/// Overhead of a convolution, besides its sums, if the library has no direct kernel for it.
double CostModel::preparation_us(const Graph& graph, const Node& node, const Gemm& gemm) const {
  if (!is_convolution(node)) return 0;
  const TensorType& type = graph.type(node.inputs[1]);
  const Dims& weight = type.dims;
  const bool has_single_channels = node.info().infer == InferRule::Conv && sizes_.extent(weight[1]) == 1;
  if (gemm.batch > 1) return has_single_channels && gemm.n > 1 ? gemm.batch * device_.group_us : 0;
  const bool is_whole =
      std::fmod(sizes_.extent(weight[0]), 8) == 0 && std::fmod(sizes_.extent(weight[1]), 8) == 0;
  const bool is_half = dtype_bytes(node.types->front().dtype) == 2;
  const bool is_product = sizes_.elements(type) == sizes_.extent(weight[0]) * sizes_.extent(weight[1]);
  return is_half && !is_product && !is_whole ? device_.padding_us : 0;
}

/// Number of times that convolutions read parts of an image's channels cut out by this node: each makes a
/// copy. (Some 1 x 1 convolutions become products, which accept strided rows; this is ignored here.)
double CostModel::parts_to_copy(const Graph& graph, NodeId id) const {
  const Node& node = graph.node(id);
  const Ints axes = cut_axes(node);
  const auto is_of_channels = [](int64_t axis) { return axis == 1 || axis == -3; };
  if (node.types->front().rank() != 4 || std::none_of(axes.begin(), axes.end(), is_of_channels)) return 0;
  const auto& uses = graph.uses(id);
  return static_cast<double>(std::count_if(uses.begin(), uses.end(), [&](const Use& use) {
    return use.node >= 0 && use.slot == 0 && is_convolution(graph.node(use.node));
  }));
}

NodeMetrics CostModel::analytic(const Graph& graph, NodeId id) const {
  const Node& node = graph.node(id);
  NodeMetrics cost;
  if (node.is_static || node.info().cost_class == CostClass::Leaf) return cost;
  const double outputs = written_bytes(node);
  cost.bytes = read_bytes(graph, node) + outputs;
  cost.launches = 1;
  const double elements = outputs / std::max(1, dtype_bytes(node.types->front().dtype));
  double arithmetic_us = 0;
  double preparation = 0;
  switch (node.info().cost_class) {
    case CostClass::Contraction: {
      const Gemm gemm = contraction_shape(graph, node, sizes_);
      cost.flops = gemm.flops();
      const double peak = device_.flops_per_us * (is_packable(graph, node) ? 1.0 : device_.unpacked_factor);
      // Avoid 0 / 0 on empty tensors.
      if (cost.flops > 0) arithmetic_us = cost.flops / (peak * efficiency(gemm, is_convolution(node)));
      if (is_convolution(node)) arithmetic_us = std::max(arithmetic_us, gemm.k * device_.step_us);
      preparation = preparation_us(graph, node, gemm);
      // Fused epilogues run on registers: one pass over the output at arithmetic speed.
      if (node.inputs.size() > 2) cost.flops += elements;
      break;
    }
    case CostClass::Attention: {
      const TensorType& query = graph.type(node.inputs[0]);
      const TensorType& key = graph.type(node.inputs[1]);
      const size_t sequence_axis = query.rank() == 4 ? 2 : 1;
      cost.flops = 4 * sizes_.elements(query) * sizes_.extent(key.dims[sequence_axis]);
      arithmetic_us = cost.flops / (device_.flops_per_us * device_.attention_factor);
      break;
    }
    case CostClass::Opaque:
      if (is_recurrent(graph, node)) {
        // Each step waits for the one before and reads the weights of the state again.
        const Dims& x = graph.type(node.inputs[0]).dims;
        const TensorType& state = graph.type(node.inputs[2]);
        const double steps = sizes_.extent(x[0]), batch = sizes_.extent(x[1]);
        const double weights = sizes_.elements(graph.type(node.inputs[1])) + sizes_.elements(state);
        cost.flops = 2 * steps * batch * weights;
        arithmetic_us = std::max(cost.flops / device_.flops_per_us, steps * stream_us(sizes_.bytes(state)));
      }
      break;
    case CostClass::Transcendental:
      cost.flops = 10 * elements;
      arithmetic_us = device_.transcendental_factor * stream_us(cost.bytes);
      break;
    case CostClass::Normalisation:
      cost.flops = 8 * elements;
      arithmetic_us = device_.transcendental_factor * stream_us(cost.bytes);
      break;
    case CostClass::Pool: {
      double window = 1;
      if (node.info().find_attr("kernel_shape") != nullptr) {
        for (const int64_t k : node.attr_ints("kernel_shape")) window *= static_cast<double>(k);
      }
      cost.flops = window * elements;
      arithmetic_us = cost.flops / (device_.flops_per_us * device_.pool_factor);
      break;
    }
    case CostClass::Reduction:
      cost.flops = cost.bytes / 4;
      break;
    case CostClass::Elementwise:
      cost.flops = elements * std::max<double>(1, static_cast<double>(node.inputs.size()) - 1);
      break;
    case CostClass::View:
      if (copies(graph, node)) {
        cost.bytes = std::min(cost.bytes, 2 * outputs);
        break;
      }
      cost.bytes = 0;
      cost.launches = 0;
      cost.time_us = device_.views_are_free ? 0 : device_.view_us * node.num_outputs();
      if (device_.cut_us > 0) cost.time_us += device_.cut_us * parts_to_copy(graph, id);
      return cost;
    case CostClass::Movement:
      // Indexed reads touch only the elements they return, not the whole table.
      cost.bytes = 2 * outputs;
      break;
    case CostClass::Host:
      cost.bytes = 0;
      cost.launches = 0;
      cost.time_us = device_.view_us;
      return cost;
    default:
      break;
  }
  if (is_fused_away(graph, node)) {
    // Its output replaces the output that the fused kernel would have written and read again.
    cost.bytes = std::max(0.0, cost.bytes - 2 * outputs);
    cost.launches = 0;
    cost.time_us = stream_us(cost.bytes);
    return cost;
  }
  const bool is_contraction = node.info().cost_class == CostClass::Contraction;
  const double launch_us = is_contraction ? device_.contraction_launch_us : device_.launch_us;
  cost.time_us = launch_us + preparation + std::max(arithmetic_us, stream_us(cost.bytes));
  return cost;
}

NodeMetrics CostModel::node(const Graph& graph, NodeId id) const {
  const Node& node = graph.node(id);
  NodeMetrics cost = analytic(graph, id);
  if (table_ == nullptr || (node.is_static && node.op != Op::Weight)) return cost;
  const double* measured = table_->find(keys(graph, id));
  cost.time_us = measured != nullptr ? *measured : cost.time_us * table_->scale(node.op);
  cost.measured_us = measured != nullptr ? cost.time_us : 0;
  return cost;
}

bool CostModel::is_measured(const Graph& graph, NodeId id) const {
  if (graph.node(id).is_static) return true;
  return table_ != nullptr && table_->contains(keys(graph, id).context);
}

NodeMetrics CostModel::total(const Graph& graph) const {
  NodeMetrics sum;
  for (NodeId id = 0; id < graph.end_id(); ++id) {
    if (graph.alive(id)) sum += node(graph, id);
  }
  return sum;
}

double CostModel::peak_bytes(const Graph& graph) const {
  const std::vector<NodeId> order = graph.topological_order();
  const auto end = static_cast<size_t>(graph.end_id());
  std::vector<NodeId> owner(end, -1);  // the node whose memory holds a node's results; -1: not counted
  std::vector<size_t> last(end, 0);    // position of the last reader of that memory
  for (size_t position = 0; position < order.size(); ++position) {
    const NodeId id = order[position];
    const Node& node = graph.node(id);
    for (const Value& input : node.inputs) {
      if (!input.present()) continue;
      const NodeId read = owner[at(input.node)];
      if (read >= 0) last[at(read)] = position;
    }
    if (node.is_static || node.info().cost_class == CostClass::Leaf) continue;
    const bool is_view = node.info().cost_class == CostClass::View && !copies(graph, node);
    owner[at(id)] = is_view ? owner[at(node.inputs[0].node)] : id;
    if (!is_view) last[at(id)] = position;
  }
  for (const Value& output : graph.outputs()) {
    const NodeId read = owner[at(output.node)];
    if (read >= 0) last[at(read)] = order.size();
  }
  std::vector<std::vector<NodeId>> freed(order.size() + 1);
  double live = 0;
  double peak = 0;
  for (size_t position = 0; position < order.size(); ++position) {
    const NodeId id = order[position];
    if (owner[at(id)] == id) {
      live += written_bytes(graph.node(id));
      freed[last[at(id)]].push_back(id);
    }
    peak = std::max(peak, live);
    for (const NodeId dead : freed[position]) live -= written_bytes(graph.node(dead));
  }
  return peak;
}

}  // namespace rlopt
