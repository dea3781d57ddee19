// Costs of nodes and graphs: measured prices if available, otherwise an analytic roofline model.
#pragma once

#include <array>
#include <memory>
#include <unordered_map>

#include "cost/contractions.h"
#include "cost/sizes.h"

namespace rlopt {

/// Parameters of the prices of one executor on one device. Times in microseconds, rates per microsecond.
struct DeviceModel {
  double flops_per_us = 240e3;        // contraction peak, all threads
  double bytes_per_us = 20e3;         // streaming bandwidth of main memory
  double cache_bytes_per_us = 100e3;  // bandwidth while the tensors fit the cache
  double cache_bytes = 24e6;
  double launch_us = 2.5;             // dispatch of one kernel
  double contraction_launch_us = 12;  // dispatch of one matrix product or convolution with its set-up
  double view_us = 1.2;               // dispatch of one view
  double step_us = 0;                 // one term of a convolution's sums, however many run in parallel
  double group_us = 0;    // one group of a convolution whose single-channel groups have several results each
  double padding_us = 0;  // padding channels of 16-bit numbers to a multiple of eight, around a convolution
  double cut_us = 0;      // one part of an image's channels that a convolution needs contiguous
  double transcendental_factor =
      3.0;  // price of exp, erf, ... and of row-wise kernels relative to a streaming pass
  double unpacked_factor = 0.7;    // fraction of the peak if the right operand is not a pre-packed weight
  double attention_factor = 0.5;   // the same for fused attention
  double pool_factor = 0.05;       // the same for pooling windows
  bool views_are_free = false;     // for executors that compile views away
  bool copies_cuts = false;        // for executors without strides: transposes and most cuts copy
  bool fuses_elementwise = false;  // for executors that fuse chains of elementwise operators
  bool fuses_epilogues = false;    // for executors that apply an activation inside the preceding contraction
};

struct NodeMetrics {
  double flops = 0;
  double bytes = 0;  // read and written
  double launches = 0;
  double time_us = 0;
  double measured_us = 0;  // the part of time_us that comes from the price table

  NodeMetrics& operator+=(const NodeMetrics& other) { return add(other, 1); }
  NodeMetrics& operator-=(const NodeMetrics& other) { return add(other, -1); }

 private:
  NodeMetrics& add(const NodeMetrics& other, double sign) {
    for (double NodeMetrics::* each : {&NodeMetrics::flops, &NodeMetrics::bytes, &NodeMetrics::launches,
                                       &NodeMetrics::time_us, &NodeMetrics::measured_us}) {
      this->*each += sign * other.*each;
    }
    return *this;
  }
};

/// Keys of the price table for a node: the same in every process, and for a symbolic graph the same as for
/// the static graph with its example sizes.
struct NodeKeys {
  uint64_t own = 0;      // operator, attributes, types, which operands are weights
  uint64_t context = 0;  // `own` and its neighbours, which affect fusion and layout in an executor
};

/// Measured times by key, and for each operator a correction of the analytic price of unmeasured nodes.
class PriceTable {
 public:
  PriceTable() { scales_.fill(1.0); }
  void set(uint64_t key, double us) { prices_[key] = us; }
  void set_scale(Op op, double factor) { scales_[at(op)] = factor; }
  /// Time in this context, otherwise of the node in any context; null if neither was measured.
  const double* find(const NodeKeys& keys) const;
  bool contains(uint64_t key) const { return prices_.contains(key); }
  double scale(Op op) const { return scales_[at(op)]; }
  size_t size() const { return prices_.size(); }

 private:
  std::unordered_map<uint64_t, double> prices_;
  std::array<double, kNumOps> scales_;
};

/// Immutable and thread-safe. The price of a node depends only on the node and its direct neighbours
/// (producers of its inputs, readers of its outputs).
class CostModel {
 public:
  explicit CostModel(DeviceModel device = {}, std::shared_ptr<const PriceTable> table = nullptr,
                     Sizes sizes = {})
      : device_(device), table_(std::move(table)), sizes_(std::move(sizes)) {}
  const DeviceModel& device() const { return device_; }
  const Sizes& sizes() const { return sizes_; }
  /// Static expressions (over weights only) cost nothing at run time.
  NodeMetrics node(const Graph& graph, NodeId id) const;
  NodeMetrics total(const Graph& graph) const;
  /// Whether a price depends on the node's readers or on other readers of its inputs.
  bool looks_at_neighbours() const {
    return table_ != nullptr || device_.fuses_elementwise || device_.fuses_epilogues || device_.cut_us > 0;
  }
  NodeKeys keys(const Graph& graph, NodeId id) const;
  /// Whether the node was measured in exactly this context; expressions over weights need no measuring.
  bool is_measured(const Graph& graph, NodeId id) const;
  /// Peak bytes of intermediates and results if the nodes run in topological order and every tensor is freed
  /// after its last reader. Views take none; inputs, weights and values computed from weights only are not
  /// counted.
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
