// The features of an observation: one table per array; each row has a feature's name and how it is computed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "search/state.h"

namespace rlopt {

struct Action;
struct ObservedEpisode;

/// Inputs of the features of a node.
struct NodeView {
  const ObservedEpisode& episode;
  NodeId id;
  const Node& node;
  const NodeMetrics& price;
  double depth;  // the longest path from an input, as a fraction of the graph's longest
};

/// The same for an edge: the value that an input slot reads.
struct EdgeView {
  const ObservedEpisode& episode;
  size_t slot;
  Value value;
};

/// The same for the graph and the machine.
struct GlobalView {
  const ObservedEpisode& episode;
  const DeviceModel& device;
};

struct CandidateView {
  const ObservedEpisode& episode;
  const Action& action;
};

/// Write the features of one row, `num_columns` values.
void write_features(const NodeView& view, float* row);
void write_features(const EdgeView& view, float* row);
void write_features(const GlobalView& view, float* row);
void write_features(const CandidateView& view, float* row);

/// Column names by array ("node", "edge", "global", "candidate"), in order.
struct FeatureColumn {
  std::string array;
  std::string name;
};
const std::vector<FeatureColumn>& feature_columns();
int num_columns(const std::string& array);

}  // namespace rlopt
