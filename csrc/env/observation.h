// Observations of an agent as flat arrays; features.h defines the numbers.
#pragma once

#include <cstdint>
#include <vector>

#include "env/features.h"

namespace rlopt {

/// A candidate that an agent may choose.
struct Action {
  int substitution = -1;
  int location = 0;               // of the first member
  std::vector<MatchPtr> members;  // one, or all of a symmetry class in order of application
  NodeMetrics delta;              // exact, summed over all members
  uint64_t hash_delta = 0;
  int num_added = 0;
  int num_removed = 0;
  bool is_visited = false;  // leads to a graph that occurred before in the episode
  bool is_macro() const { return members.size() > 1; }
};

/// The parts of an episode that are observed.
struct ObservedEpisode {
  const RewriteState* state = nullptr;
  const std::vector<Action>* table = nullptr;
  NodeMetrics initial;
  double best_us = 0;
  double steps_left = 0;  // as a fraction of the maximum number of steps
  std::vector<NodeId> order;
  size_t num_edges = 0;
  size_t num_matched = 0;  // node references of all candidates
};

/// Row counts of all episodes together.
struct ObservationSizes {
  size_t episodes = 0, nodes = 0, edges = 0, candidates = 0, matched = 0;
};

/// Output arrays. B episodes, N nodes, E edges, C candidates, M references from candidates to nodes.
struct ObservationArrays {
  int64_t* node_offsets;       // [B + 1]
  int64_t* edge_offsets;       // [B + 1]
  int64_t* candidate_offsets;  // [B + 1]
  int64_t* ops;                // [N], ids of ops.def
  float* nodes;                // [N, num_columns("node")]
  int64_t* edge_index;         // [2, E], rows of nodes: from, to
  float* edges;                // [E, ...]
  float* globals;              // [B, ...]
  int64_t* substitutions;      // [C]
  int64_t* locations;          // [C]
  float* candidates;           // [C, ...]
  int64_t* matched_offsets;    // [C + 1]
  int64_t* matched;            // [M], rows of nodes
};

/// Counts an episode's rows.
void measure(ObservedEpisode& episode);
/// Writes the rows of one episode, starting at `first`, and where each ends; for the nodes that candidates
/// match, only where each begins. Several threads may write different episodes.
void write(const ObservedEpisode& episode, const DeviceModel& device, const ObservationSizes& first,
           size_t num_edges, const ObservationArrays& arrays);

}  // namespace rlopt
