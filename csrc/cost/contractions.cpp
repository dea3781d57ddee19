#include "cost/contractions.h"

#include <algorithm>
#include <cmath>

namespace rlopt {

namespace {

Gemm matmul_shape(const Graph& graph, const Node& node, const Sizes& sizes) {
  const TensorType& a = graph.type(node.inputs[0]);
  const TensorType& out = node.types->front();
  Gemm gemm;
  gemm.k = a.dims.empty() ? 1 : sizes.extent(a.dims.back());
  const TensorType& b = graph.type(node.inputs[1]);
  if (b.rank() <= 2) {  // one right operand for all rows: a single product
    gemm.n = b.rank() == 2 ? sizes.extent(b.dims.back()) : 1;
    gemm.m = std::max(1.0, sizes.elements(out) / std::max(1.0, gemm.n));
    return gemm;
  }
  gemm.n = sizes.extent(b.dims.back());
  gemm.m = a.rank() >= 2 ? sizes.extent(a.dims[a.dims.size() - 2]) : 1;
  gemm.batch = std::max(1.0, sizes.elements(out) / std::max(1.0, gemm.m * gemm.n));
  return gemm;
}

Gemm conv_shape(const Graph& graph, const Node& node, const Sizes& sizes) {
  const TensorType& weight = graph.type(node.inputs[1]);
  const TensorType& out = node.types->front();
  const auto group = static_cast<double>(node.attr_int("group"));
  Gemm gemm;
  const bool transposed = node.op == Op::ConvTranspose;
  const double channels_out =
      transposed ? sizes.extent(weight.dims[1]) * group : sizes.extent(weight.dims[0]);
  gemm.n = channels_out / group;
  gemm.k = sizes.elements(weight) / std::max(1.0, sizes.extent(weight.dims[0]));
  if (transposed) gemm.k *= sizes.extent(weight.dims[0]) / (group * std::max(1.0, gemm.n));
  gemm.batch = group;
  gemm.m = sizes.elements(out) / std::max(1.0, channels_out);
  if (transposed) {
    const TensorType& input = graph.type(node.inputs[0]);
    gemm.m = sizes.elements(input) / std::max(1.0, sizes.extent(input.dims[1]));
  }
  return gemm;
}

constexpr double kDepthwiseEfficiency = 0.22;

}  // namespace

bool is_convolution(const Node& node) {
  return node.info().infer == InferRule::Conv || node.info().infer == InferRule::ConvTranspose;
}

bool is_packable(const Graph& graph, const Node& node) {
  if (node.info().cost_class != CostClass::Contraction || node.inputs.size() < 2) return false;
  if (!graph.is_static(node.inputs[1])) return false;
  return is_convolution(node) || graph.type(node.inputs[1]).rank() == 2;
}

Gemm contraction_shape(const Graph& graph, const Node& node, const Sizes& sizes) {
  switch (node.info().infer) {
    case InferRule::Conv:
    case InferRule::ConvTranspose:
      return conv_shape(graph, node, sizes);
    case InferRule::Gemm: {
      const TensorType& a = graph.type(node.inputs[0]);
      const TensorType& out = node.types->front();
      return {1, sizes.extent(out.dims[0]), sizes.extent(out.dims[1]),
              sizes.extent(a.dims[node.attr_int("transA") != 0 ? 0 : 1])};
    }
    case InferRule::Einsum: {
      // Upper bound without parsing the equation: every output element reads the largest operand once.
      double largest = 1;
      for (const Value& input : node.inputs) largest = std::max(largest, sizes.elements(graph.type(input)));
      return {1, sizes.elements(node.types->front()), 1, std::sqrt(largest)};
    }
    default:
      return matmul_shape(graph, node, sizes);
  }
}

double efficiency(const Gemm& gemm, bool is_convolution) {
  // Depthwise kernels vectorise over channels instead of columns.
  if (is_convolution && gemm.n == 1) return kDepthwiseEfficiency;
  const double rows = is_convolution ? gemm.m * gemm.batch : gemm.m;
  return (gemm.k / (gemm.k + 24)) * (gemm.n / (gemm.n + 12)) * (rows / (rows + 6));
}

}  // namespace rlopt
