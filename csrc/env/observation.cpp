#include "env/observation.h"

#include <algorithm>
#include <cmath>

namespace rlopt {

namespace {

constexpr int kNumDims = 6;   // the last dims of a shape
constexpr int kNumAttrs = 6;  // the first numbers among the attributes

float log_of(double value) { return static_cast<float>(std::log2(1 + std::fabs(value))); }
float signed_log(double value) { return value < 0 ? -log_of(value) : log_of(value); }
float ratio(double part, double whole) { return static_cast<float>(whole > 0 ? part / whole : 0); }

std::vector<FeatureColumn> make_columns() {
  std::vector<FeatureColumn> columns;
  const auto add = [&](const std::string& array, const std::vector<std::string>& names) {
    for (const std::string& name : names) columns.push_back({array, name});
  };
  const auto numbered = [&](const std::string& array, const std::string& name, int count) {
    for (int i = 0; i < count; ++i) columns.push_back({array, name + std::to_string(i)});
  };
  numbered("node", "log_dim_", kNumDims);
  add("node", {"rank", "is_float", "is_integer", "log_item_bytes", "log_num_outputs"});
  numbered("node", "log_attr_", kNumAttrs);
  add("node", {"is_weight", "is_constant", "is_static", "is_input", "is_output", "cost_share", "log_flops",
               "log_bytes", "log_in_degree", "log_out_degree", "depth"});
  numbered("edge", "log_dim_", kNumDims);
  add("edge", {"log_slot", "log_bytes", "is_static"});
  add("global", {"cost", "best_cost", "log_num_nodes", "log_num_edges", "log_num_candidates", "steps_left",
                 "device_log_flops_per_us", "device_log_bytes_per_us", "device_log_cache_bytes_per_us",
                 "device_log_cache_bytes", "device_log_launch_us", "device_log_contraction_launch_us",
                 "device_log_view_us", "device_views_are_free"});
  add("candidate", {"cost_delta", "flops_delta", "bytes_delta", "launches_delta", "log_num_added",
                    "log_num_removed", "is_macro", "log_num_members", "is_visited"});
  return columns;
}

/// Writes one row after another, value by value.
class Row {
 public:
  explicit Row(float* at) : at_(at) {}
  void put(float value) { *at_++ = value; }
  void put_dims(const TensorType& type) {
    const int rank = type.rank();
    for (int i = kNumDims; i > 0; --i) {
      const bool has = i <= rank;
      put(has ? log_of(
                    TensorType{type.dtype, true, {type.dims[static_cast<size_t>(rank - i)]}}.num_elements())
              : 0.0F);
    }
  }
  void put_attrs(const Attrs& attrs) {
    int left = kNumAttrs;
    const auto number = [&](double value) {
      if (left-- > 0)
        put(std::isfinite(value) ? signed_log(value) : std::copysign(128.0F, static_cast<float>(value)));
    };
    for (const AttrValue& value : attrs.values()) {
      if (const auto* integer = std::get_if<int64_t>(&value)) number(static_cast<double>(*integer));
      if (const auto* real = std::get_if<double>(&value)) number(*real);
      if (const auto* integers = std::get_if<Ints>(&value)) {
        for (const int64_t each : *integers) number(static_cast<double>(each));
      }
    }
    while (left-- > 0) put(0);
  }

 private:
  float* at_;
};

}  // namespace

const std::vector<FeatureColumn>& feature_columns() {
  static const std::vector<FeatureColumn> columns = make_columns();
  return columns;
}

int num_columns(const std::string& array) {
  return static_cast<int>(std::count_if(feature_columns().begin(), feature_columns().end(),
                                        [&](const FeatureColumn& column) { return column.array == array; }));
}

uint64_t feature_hash() {
  uint64_t hash = 1;
  for (const FeatureColumn& column : feature_columns()) {
    hash = hash_mix(hash, hash_string(column.array + "." + column.name));
  }
  for (const OpInfo& info : all_ops()) hash = hash_mix(hash, hash_string(info.name));
  return hash;
}

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
  const double whole_us = episode.initial.time_us;
  std::vector<int64_t> rows(static_cast<size_t>(graph.end_id()), -1);
  for (size_t i = 0; i < episode.order.size(); ++i) {
    rows[static_cast<size_t>(episode.order[i])] = static_cast<int64_t>(first.nodes + i);
  }
  std::vector<int> depths(static_cast<size_t>(graph.end_id()), 0);
  int deepest = 1;
  for (const NodeId id : episode.order) {
    int& depth = depths[static_cast<size_t>(id)];
    for (const Value& input : graph.node(id).inputs) {
      if (input.present()) depth = std::max(depth, depths[static_cast<size_t>(input.node)] + 1);
    }
    deepest = std::max(deepest, depth);
  }
  size_t edge = first.edges;
  for (const NodeId id : episode.order) {
    const Node& node = graph.node(id);
    const auto row_index = static_cast<size_t>(rows[static_cast<size_t>(id)]);
    const TensorType& type = node.types->front();
    const NodeMetrics& price = state.price(id);
    arrays.ops[row_index] = static_cast<int64_t>(node.op);
    Row row(arrays.nodes + row_index * static_cast<size_t>(node_width));
    row.put_dims(type);
    row.put(static_cast<float>(type.rank()));
    row.put(is_floating(type.dtype) ? 1 : 0);
    row.put(is_integer(type.dtype) ? 1 : 0);
    row.put(log_of(dtype_bytes(type.dtype)));
    row.put(log_of(node.num_outputs()));
    row.put_attrs(*node.attrs);
    row.put(node.op == Op::Weight ? 1 : 0);
    row.put(node.op == Op::Constant ? 1 : 0);
    row.put(node.is_static ? 1 : 0);
    row.put(node.op == Op::Input ? 1 : 0);
    const std::vector<Use>& uses = graph.uses(id);
    row.put(std::any_of(uses.begin(), uses.end(), [](const Use& use) { return use.node < 0; }) ? 1 : 0);
    row.put(ratio(price.time_us, whole_us));
    row.put(log_of(price.flops));
    row.put(log_of(price.bytes));
    row.put(log_of(static_cast<double>(node.inputs.size())));
    row.put(log_of(static_cast<double>(uses.size())));
    row.put(ratio(depths[static_cast<size_t>(id)], deepest));
    for (size_t slot = 0; slot < node.inputs.size(); ++slot) {
      const Value input = node.inputs[slot];
      if (!input.present()) continue;
      arrays.edge_index[edge] = rows[static_cast<size_t>(input.node)];
      arrays.edge_index[num_edges + edge] = static_cast<int64_t>(row_index);
      Row edge_row(arrays.edges + edge * static_cast<size_t>(edge_width));
      const TensorType& read = graph.type(input);
      edge_row.put_dims(read);
      edge_row.put(log_of(static_cast<double>(slot)));
      edge_row.put(log_of(read.num_bytes()));
      edge_row.put(graph.is_static(input) ? 1 : 0);
      ++edge;
    }
  }

  Row row(arrays.globals + first.episodes * static_cast<size_t>(global_width));
  row.put(ratio(state.cost_us(), whole_us));
  row.put(ratio(episode.best_us, whole_us));
  row.put(log_of(static_cast<double>(episode.order.size())));
  row.put(log_of(static_cast<double>(episode.num_edges)));
  row.put(log_of(static_cast<double>(episode.table->size())));
  row.put(static_cast<float>(episode.steps_left));
  row.put(log_of(device.flops_per_us));
  row.put(log_of(device.bytes_per_us));
  row.put(log_of(device.cache_bytes_per_us));
  row.put(log_of(device.cache_bytes));
  row.put(log_of(device.launch_us));
  row.put(log_of(device.contraction_launch_us));
  row.put(log_of(device.view_us));
  row.put(device.views_are_free ? 1 : 0);

  size_t candidate = first.candidates, matched = first.matched;
  for (const Action& action : *episode.table) {
    arrays.substitutions[candidate] = action.substitution;
    arrays.locations[candidate] = action.location;
    arrays.matched_offsets[candidate] = static_cast<int64_t>(matched);
    Row candidate_row(arrays.candidates + candidate * static_cast<size_t>(candidate_width));
    candidate_row.put(ratio(action.delta.time_us, whole_us));
    candidate_row.put(ratio(action.delta.flops, episode.initial.flops));
    candidate_row.put(ratio(action.delta.bytes, episode.initial.bytes));
    candidate_row.put(ratio(action.delta.launches, episode.initial.launches));
    candidate_row.put(log_of(action.num_added));
    candidate_row.put(log_of(action.num_removed));
    candidate_row.put(action.is_macro() ? 1 : 0);
    candidate_row.put(log_of(static_cast<double>(action.members.size())));
    candidate_row.put(action.is_visited ? 1 : 0);
    for (const MatchPtr& match : action.members) {
      for (const NodeId id : match->nodes) arrays.matched[matched++] = rows[static_cast<size_t>(id)];
    }
    ++candidate;
  }
  const size_t b = first.episodes;
  arrays.node_offsets[b + 1] = static_cast<int64_t>(first.nodes + episode.order.size());
  arrays.edge_offsets[b + 1] = static_cast<int64_t>(edge);
  arrays.candidate_offsets[b + 1] = static_cast<int64_t>(candidate);
}

}  // namespace rlopt
