// Arithmetic of a node: the matrix products of contractions, and numbers of elements.
#pragma once

#include "cost/sizes.h"

namespace rlopt {

/// A contraction as `batch` products of [m, k] by [k, n].
struct Gemm {
  double batch = 1, m = 1, n = 1, k = 1;
  double flops() const { return 2 * batch * m * n * k; }
};

/// The shape of a node of cost class Contraction.
Gemm contraction_shape(const Graph& graph, const Node& node, const Sizes& sizes);
bool is_convolution(const Node& node);
/// Whether its right operand is a weight that an executor can pack ahead of time: a convolution's kernel, or
/// one matrix for all rows.
bool is_packable(const Graph& graph, const Node& node);
/// Fraction of the arithmetic peak that a product of this shape reaches: short reductions and few columns
/// leave vector lanes and registers idle, few rows leave threads idle.
double efficiency(const Gemm& gemm, bool is_convolution);

}  // namespace rlopt
