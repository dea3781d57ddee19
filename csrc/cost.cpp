#include "cost.h"

#include <algorithm>
#include <cmath>

namespace rlopt {

namespace {

double bytes_of(const Graph& graph, const Value& value) {
  return value.present() ? graph.type(value).num_bytes() : 0.0;
}

double read_bytes(const Graph& graph, const Node& node) {
  double bytes = 0;
  for (const Value& input : node.inputs) bytes += bytes_of(graph, input);
  return bytes;
}

double written_bytes(const Node& node) {
  double bytes = 0;
  for (const TensorType& type : *node.types) bytes += type.num_bytes();
  return bytes;
}

double extent(const Dim& dim) { return TensorType{DType::f32, true, {dim}}.num_elements(); }

/// Shape of a contraction seen as `batch` products of [m, k] by [k, n].
struct Gemm {
  double batch = 1, m = 1, n = 1, k = 1;
  double flops() const { return 2 * batch * m * n * k; }
};

Gemm matmul_shape(const Graph& graph, const Node& node) {
  const TensorType& a = graph.type(node.inputs[0]);
  const TensorType& out = node.types->front();
  Gemm gemm;
  gemm.k = a.dims.empty() ? 1 : extent(a.dims.back());
  const TensorType& b = graph.type(node.inputs[1]);
  if (b.rank() <= 2) {  // one right operand for all rows: a single product
    gemm.n = b.rank() == 2 ? extent(b.dims.back()) : 1;
    gemm.m = std::max(1.0, out.num_elements() / std::max(1.0, gemm.n));
    return gemm;
  }
  gemm.n = extent(b.dims.back());
  gemm.m = a.rank() >= 2 ? extent(a.dims[a.dims.size() - 2]) : 1;
  gemm.batch = std::max(1.0, out.num_elements() / std::max(1.0, gemm.m * gemm.n));
  return gemm;
}

Gemm conv_shape(const Graph& graph, const Node& node) {
  const TensorType& weight = graph.type(node.inputs[1]);
  const TensorType& out = node.types->front();
  const auto group = static_cast<double>(node.attr_int("group"));
  Gemm gemm;
  const bool transposed = node.op == Op::ConvTranspose;
  const double channels_out = transposed ? extent(weight.dims[1]) * group : extent(weight.dims[0]);
  gemm.n = channels_out / group;
  gemm.k = weight.num_elements() / std::max(1.0, extent(weight.dims[0]));
  if (transposed) gemm.k *= extent(weight.dims[0]) / (group * std::max(1.0, gemm.n));
  gemm.batch = group;
  gemm.m = out.num_elements() / std::max(1.0, channels_out);
  if (transposed) {
    const TensorType& input = graph.type(node.inputs[0]);
    gemm.m = input.num_elements() / std::max(1.0, extent(input.dims[1]));
  }
  return gemm;
}

Gemm contraction_shape(const Graph& graph, const Node& node) {
  switch (node.info().infer) {
    case InferRule::Conv:
    case InferRule::ConvTranspose:
      return conv_shape(graph, node);
    case InferRule::Gemm: {
      const TensorType& a = graph.type(node.inputs[0]);
      const TensorType& out = node.types->front();
      return {1, extent(out.dims[0]), extent(out.dims[1]),
              extent(a.dims[node.attr_int("transA") != 0 ? 0 : 1])};
    }
    case InferRule::Einsum: {
      // Upper bound that does not parse the equation: every output element reads the largest operand once.
      double largest = 1;
      for (const Value& input : node.inputs) largest = std::max(largest, graph.type(input).num_elements());
      return {1, node.types->front().num_elements(), 1, std::sqrt(largest)};
    }
    default:
      return matmul_shape(graph, node);
  }
}

constexpr double kDepthwiseEfficiency = 0.22;

/// Fraction of the arithmetic peak that a product of this shape reaches: short reductions and few columns
/// leave vector lanes and registers idle, few rows leave threads idle.
double efficiency(const Gemm& gemm, bool is_convolution) {
  // Depth-wise kernels vectorise over channels instead of columns.
  if (is_convolution && gemm.n == 1) return kDepthwiseEfficiency;
  const double rows = is_convolution ? gemm.m * gemm.batch : gemm.m;
  return (gemm.k / (gemm.k + 24)) * (gemm.n / (gemm.n + 12)) * (rows / (rows + 6));
}

}  // namespace

/// True where a reshape cannot be a view of its operand: a permuted or expanded one, or a part cut out of an
/// inner axis that the reshape merges with the axis before it.
bool CostModel::copies(const Graph& graph, const Node& node) const {
  if (node.op != Op::Reshape && node.op != Op::Flatten) return false;
  const Value operand = node.inputs[0];
  const Node& producer = graph.node(operand.node);
  if (producer.op == Op::Transpose || producer.op == Op::Expand) return true;
  Ints axes;
  if (producer.op == Op::Split) axes = {producer.attr_int("axis")};
  if (producer.op == Op::Slice) axes = producer.attr_ints("axes");
  const Dims& dims = graph.type(operand).dims;
  for (const int64_t axis : axes) {
    const auto cut = static_cast<size_t>(axis < 0 ? axis + static_cast<int64_t>(dims.size()) : axis);
    double outer = 1, prefix = 1;
    for (size_t i = 0; i < cut; ++i) outer *= extent(dims[i]);
    bool keeps_cut = outer == 1;
    for (const Dim& dim : node.types->front().dims) keeps_cut = (prefix *= extent(dim)) == outer || keeps_cut;
    if (!keeps_cut) return true;
  }
  return false;
}

double CostModel::stream_us(double bytes) const {
  const double rate = bytes <= device_.cache_bytes ? device_.cache_bytes_per_us : device_.bytes_per_us;
  return bytes / rate;
}

NodeMetrics CostModel::node(const Graph& graph, NodeId id) const {
  const Node& node = graph.node(id);
  NodeMetrics cost;
  if (node.is_static || node.info().cost_class == CostClass::Leaf) return cost;
  const double outputs = written_bytes(node);
  cost.bytes = read_bytes(graph, node) + outputs;
  cost.launches = 1;
  const double elements = outputs / std::max(1, dtype_bytes(node.types->front().dtype));
  double arithmetic_us = 0;
  switch (node.info().cost_class) {
    case CostClass::Contraction: {
      const Gemm gemm = contraction_shape(graph, node);
      cost.flops = gemm.flops();
      // Only a convolution's kernel or one matrix for all rows is packed ahead of time.
      const bool is_convolution =
          node.info().infer == InferRule::Conv || node.info().infer == InferRule::ConvTranspose;
      const bool is_packed =
          graph.is_static(node.inputs[1]) && (is_convolution || graph.type(node.inputs[1]).rank() == 2);
      const double peak = device_.flops_per_us * (is_packed ? 1.0 : device_.unpacked_factor);
      // No 0 / 0 on empty tensors.
      arithmetic_us = cost.flops > 0 ? cost.flops / (peak * efficiency(gemm, is_convolution)) : 0;
      // Fused epilogues run on registers: one pass over the output at arithmetic speed.
      if (node.inputs.size() > 2) cost.flops += elements;
      break;
    }
    case CostClass::Attention: {
      const TensorType& query = graph.type(node.inputs[0]);
      const TensorType& key = graph.type(node.inputs[1]);
      const size_t sequence_axis = query.rank() == 4 ? 2 : 1;
      cost.flops = 4 * query.num_elements() * extent(key.dims[sequence_axis]);
      arithmetic_us = cost.flops / (device_.flops_per_us * device_.attention_factor);
      break;
    }
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
      if (copies(graph, node)) break;
      cost.bytes = 0;
      cost.launches = 0;
      cost.time_us = device_.views_are_free ? 0 : device_.view_us * node.num_outputs();
      return cost;
    case CostClass::Movement:
      // Indexed reads touch what they give, not the whole table.
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
  const bool is_contraction = node.info().cost_class == CostClass::Contraction;
  const double launch_us = is_contraction ? device_.contraction_launch_us : device_.launch_us;
  cost.time_us = launch_us + std::max(arithmetic_us, stream_us(cost.bytes));
  return cost;
}

NodeMetrics CostModel::total(const Graph& graph) const {
  NodeMetrics sum;
  for (NodeId id = 0; id < graph.end_id(); ++id) {
    if (!graph.alive(id)) continue;
    const NodeMetrics cost = node(graph, id);
    sum.flops += cost.flops;
    sum.bytes += cost.bytes;
    sum.launches += cost.launches;
    sum.time_us += cost.time_us;
  }
  return sum;
}

}  // namespace rlopt
