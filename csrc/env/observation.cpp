#include "env/observation.h"

#include <algorithm>

namespace rlopt {

void measure(ObservedEpisode& episode) {
  const Graph& graph = episode.state->graph();
  episode.order = graph.topological_order();
  episode.num_edges = episode.num_matched = 0;
  for (const NodeId id : episode.order) {
    for (const Value& input : graph.node(id).inputs) episode.num_edges += input.present() ? 1 : 0;
  }
  for (const Action& action : *episode.table) {
    for (const MatchPtr& match : action.members) episode.num_matched += match->nodes.size();
  }
}

void write(const ObservedEpisode& episode, const DeviceModel& device, const ObservationSizes& first,
           size_t num_edges, const ObservationArrays& arrays) {
  static const int node_width = num_columns("node"), edge_width = num_columns("edge"),
                   global_width = num_columns("global"), candidate_width = num_columns("candidate");
  const RewriteState& state = *episode.state;
  const Graph& graph = state.graph();
  std::vector<int64_t> rows(static_cast<size_t>(graph.end_id()), -1);
  for (size_t i = 0; i < episode.order.size(); ++i) {
    rows[at(episode.order[i])] = static_cast<int64_t>(first.nodes + i);
  }
  std::vector<int> depths(static_cast<size_t>(graph.end_id()), 0);
  int deepest = 1;
  for (const NodeId id : episode.order) {
    int& depth = depths[at(id)];
    for (const Value& input : graph.node(id).inputs) {
      if (input.present()) depth = std::max(depth, depths[at(input.node)] + 1);
    }
    deepest = std::max(deepest, depth);
  }
  size_t edge = first.edges;
  for (const NodeId id : episode.order) {
    const Node& node = graph.node(id);
    const auto row_index = static_cast<size_t>(rows[at(id)]);
    arrays.ops[row_index] = static_cast<int64_t>(node.op);
    const double depth = static_cast<double>(depths[at(id)]) / deepest;
    write_features(NodeView{episode, id, node, state.price(id), depth},
                   arrays.nodes + row_index * static_cast<size_t>(node_width));
    for (size_t slot = 0; slot < node.inputs.size(); ++slot) {
      const Value input = node.inputs[slot];
      if (!input.present()) continue;
      arrays.edge_index[edge] = rows[at(input.node)];
      arrays.edge_index[num_edges + edge] = static_cast<int64_t>(row_index);
      write_features(EdgeView{episode, slot, input}, arrays.edges + edge * static_cast<size_t>(edge_width));
      ++edge;
    }
  }

  write_features(GlobalView{episode, device},
                 arrays.globals + first.episodes * static_cast<size_t>(global_width));

  size_t candidate = first.candidates, matched = first.matched;
  for (const Action& action : *episode.table) {
    arrays.substitutions[candidate] = action.substitution;
    arrays.locations[candidate] = action.location;
    arrays.matched_offsets[candidate] = static_cast<int64_t>(matched);
    write_features(CandidateView{episode, action},
                   arrays.candidates + candidate * static_cast<size_t>(candidate_width));
    for (const MatchPtr& match : action.members) {
      for (const NodeId id : match->nodes) arrays.matched[matched++] = rows[at(id)];
    }
    ++candidate;
  }
  const size_t b = first.episodes;
  arrays.node_offsets[b + 1] = static_cast<int64_t>(first.nodes + episode.order.size());
  arrays.edge_offsets[b + 1] = static_cast<int64_t>(edge);
  arrays.candidate_offsets[b + 1] = static_cast<int64_t>(candidate);
}

}  // namespace rlopt
