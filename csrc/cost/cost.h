// Cost of a node and of a graph: measured prices where there are any, an analytic roofline elsewhere.
#pragma once

#include <array>
#include <memory>
#include <unordered_map>

#include "cost/contractions.h"
#include "cost/sizes.h"

namespace rlopt {

/// What the prices of one executor on one device depend on. Times in microseconds, rates per microsecond.
struct DeviceModel {
  double flops_per_us = 240e3;        // contraction peak, all threads
  double bytes_per_us = 20e3;         // streaming bandwidth of main memory
  double cache_bytes_per_us = 100e3;  // bandwidth while the tensors fit the cache
  double cache_bytes = 24e6;
  double launch_us = 2.5;             // dispatch of one kernel
  double contraction_launch_us = 12;  // dispatch of one matrix product or convolution with its set-up
  double view_us = 1.2;               // dispatch of one view
  double step_us = 0;                 // one term of the sums of a convolution, however many run beside it
  double group_us = 0;    // one group of a convolution with several results for each of its single channels
  double padding_us = 0;  // padding channels of 16-bit numbers to a multiple of eight, around a convolution
  double cut_us = 0;      // one part of an image's channels that a convolution reads, which needs it dense
  double transcendental_factor =
      3.0;  // price of exp, erf, ... and of row-wise kernels relative to a streaming pass
  double unpacked_factor = 0.7;    // fraction of the peak where the right operand is no pre-packed weight
  double attention_factor = 0.5;   // the same for fused attention
  double pool_factor = 0.05;       // the same for pooling windows
  bool views_are_free = false;     // executors that compile views away
  bool copies_cuts = false;        // executors without strides: transposes and most cuts copy
  bool fuses_elementwise = false;  // executors that compile chains of elementwise operators into one kernel
  bool fuses_epilogues = false;    // executors that apply an activation inside the contraction before it
};

struct NodeMetrics {
  double flops = 0;
  double bytes = 0;  // read and written
  double launches = 0;
  double time_us = 0;
  double measured_us = 0;  // the part of time_us that comes from the price table
};

/// Names under which the time of a node is remembered: the same in every process, and for a symbolic graph
/// the same as for the static one of its example sizes.
struct NodeKeys {
  uint64_t own = 0;      // operator, attributes, types, which operands are weights
  uint64_t context = 0;  // `own` and what stands next to it: what an executor fuses or lays out by
};

/// Measured times by key, and how far off the analytic price of each operator is where none was measured.
class PriceTable {
 public:
  PriceTable() { scales_.fill(1.0); }
  void set(uint64_t key, double us) { prices_[key] = us; }
  void set_scale(Op op, double factor) { scales_[static_cast<size_t>(op)] = factor; }
  /// Time of a context, else of the node in any context; null where neither was measured.
  const double* find(const NodeKeys& keys) const;
  bool contains(uint64_t key) const { return prices_.contains(key); }
  double scale(Op op) const { return scales_[static_cast<size_t>(op)]; }
  size_t size() const { return prices_.size(); }

 private:
  std::unordered_map<uint64_t, double> prices_;
  std::array<double, kNumOps> scales_;
};

/// Immutable, and safe to use from several threads. The price of a node depends on the node and its direct
/// neighbours (producers of its inputs, readers of its outputs) only.
class CostModel {
 public:
  explicit CostModel(DeviceModel device = {}, std::shared_ptr<const PriceTable> table = nullptr,
                     Sizes sizes = {})
      : device_(device), table_(std::move(table)), sizes_(std::move(sizes)) {}
  const DeviceModel& device() const { return device_; }
  const Sizes& sizes() const { return sizes_; }
  /// Static expressions (over weights only) cost nothing at run time.
  NodeMetrics node(const Graph& graph, NodeId id) const;
  /// `node(graph, id).time_us`; quick where the price was measured.
  double time_us(const Graph& graph, NodeId id) const;
  NodeMetrics total(const Graph& graph) const;
  /// True if a price depends on the node's readers or on other readers of its inputs.
  bool looks_at_neighbours() const {
    return table_ != nullptr || device_.fuses_elementwise || device_.fuses_epilogues || device_.cut_us > 0;
  }
  NodeKeys keys(const Graph& graph, NodeId id) const;
  /// Whether the very context of the node was measured; expressions over weights need no measuring.
  bool is_measured(const Graph& graph, NodeId id) const;
  /// Most bytes that intermediates and results take at once when the nodes run in topological order and every
  /// tensor is freed after its last reader. Views take none; inputs, weights and what is computed from
  /// weights only are not counted.
  double peak_bytes(const Graph& graph) const;

 private:
  NodeMetrics analytic(const Graph& graph, NodeId id) const;
  bool copies(const Graph& graph, const Node& node) const;
  bool copies_without_strides(const Graph& graph, const Node& node) const;
  /// Product of the extents before an axis.
  double outer_extent(const Dims& dims, int64_t axis) const;
  bool is_fused_away(const Graph& graph, const Node& node) const;
  double read_bytes(const Graph& graph, const Node& node) const;
  double written_bytes(const Node& node) const;
  double parts_to_copy(const Graph& graph, NodeId id) const;
  double preparation_us(const Graph& graph, const Node& node, const Gemm& gemm) const;
  double stream_us(double bytes) const;

  DeviceModel device_;
  std::shared_ptr<const PriceTable> table_;  // null: analytic only
  Sizes sizes_;
};

}  // namespace rlopt
