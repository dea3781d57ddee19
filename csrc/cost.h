// Cost of a node and of a graph: analytic roofline with launch overhead.
#pragma once

#include <string>
#include <vector>

#include "graph.h"

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
  double transcendental_factor =
      3.0;  // price of exp, erf, ... and of row-wise kernels relative to a streaming pass
  double unpacked_factor = 0.7;   // fraction of the peak where the right operand is no pre-packed weight
  double attention_factor = 0.5;  // the same for fused attention
  double pool_factor = 0.05;      // the same for pooling windows
  bool views_are_free = false;    // executors that compile views away
};

struct NodeMetrics {
  double flops = 0;
  double bytes = 0;  // read and written
  double launches = 0;
  double time_us = 0;
};

class CostModel {
 public:
  explicit CostModel(DeviceModel device = {}) : device_(device) {}
  const DeviceModel& device() const { return device_; }
  /// Static expressions (over weights only) cost nothing at run time.
  NodeMetrics node(const Graph& graph, NodeId id) const;
  NodeMetrics total(const Graph& graph) const;
  /// Whether the price of a node depends on more of its neighbours than the types, the static flags and the
  /// operators of what it reads.
  bool looks_at_neighbours() const { return false; }

 private:
  bool copies(const Graph& graph, const Node& node) const;
  double stream_us(double bytes) const;

  DeviceModel device_;
};

}  // namespace rlopt
