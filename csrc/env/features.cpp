#include "env/features.h"

#include <algorithm>
#include <cmath>

#include "env/observation.h"

namespace rlopt {

namespace {

constexpr int kNumDims = 6;   // the last dims of a shape
constexpr int kNumAttrs = 6;  // the first numbers among the attributes

float log_of(double value) { return static_cast<float>(std::log2(1 + std::fabs(value))); }
float signed_log(double value) { return value < 0 ? -log_of(value) : log_of(value); }
float ratio(double part, double whole) { return static_cast<float>(whole > 0 ? part / whole : 0); }
float flag(bool value) { return value ? 1.0F : 0.0F; }
float log_size(size_t size) { return log_of(static_cast<double>(size)); }

/// The last dims, padded in front.
void write_dims(const TensorType& type, float* row) {
  const int rank = type.rank();
  for (int i = kNumDims; i > 0; --i) {
    *row++ =
        i > rank
            ? 0.0F
            : log_of(TensorType{type.dtype, true, {type.dims[static_cast<size_t>(rank - i)]}}.num_elements());
  }
}

/// The first numbers, those of lists of integers included, padded at the end.
void write_attrs(const Attrs& attrs, float* row) {
  int left = kNumAttrs;
  const auto number = [&](double value) {
    if (left-- > 0)
      *row++ = std::isfinite(value) ? signed_log(value) : std::copysign(128.0F, static_cast<float>(value));
  };
  for (const AttrValue& value : attrs.values()) {
    if (const auto* integer = std::get_if<int64_t>(&value)) number(static_cast<double>(*integer));
    if (const auto* real = std::get_if<double>(&value)) number(*real);
    if (const auto* integers = std::get_if<Ints>(&value)) {
      for (const int64_t each : *integers) number(static_cast<double>(each));
    }
  }
  while (left-- > 0) *row++ = 0;
}

const Graph& graph_of(const ObservedEpisode& episode) { return episode.state->graph(); }
const TensorType& type_of(const NodeView& v) { return v.node.types->front(); }
const TensorType& type_of(const EdgeView& v) { return graph_of(v.episode).type(v.value); }
const std::vector<Use>& uses_of(const NodeView& v) { return graph_of(v.episode).uses(v.id); }

/// A row of a table: a feature of one column, or of several, numbered from 0.
template <class View>
struct Feature {
  Feature(const char* name, float (*value)(const View&)) : name(name), value(value) {}
  Feature(const char* name, int count, void (*write)(const View&, float*))
      : name(name), count(count), write(write) {}

  std::string name;
  int count = 1;
  float (*value)(const View&) = nullptr;
  void (*write)(const View&, float*) = nullptr;
};
template <class View>
using Features = std::vector<Feature<View>>;

const Features<NodeView>& node_features() {
  using V = const NodeView&;
  static const Features<NodeView> features{
      {"log_dim_", kNumDims, [](V v, float* row) { write_dims(type_of(v), row); }},
      {"rank", [](V v) { return static_cast<float>(type_of(v).rank()); }},
      {"is_float", [](V v) { return flag(is_floating(type_of(v).dtype)); }},
      {"is_integer", [](V v) { return flag(is_integer(type_of(v).dtype)); }},
      {"log_item_bytes", [](V v) { return log_of(dtype_bytes(type_of(v).dtype)); }},
      {"log_num_outputs", [](V v) { return log_of(v.node.num_outputs()); }},
      {"log_attr_", kNumAttrs, [](V v, float* row) { write_attrs(*v.node.attrs, row); }},
      {"is_weight", [](V v) { return flag(v.node.op == Op::Weight); }},
      {"is_constant", [](V v) { return flag(v.node.op == Op::Constant); }},
      {"is_static", [](V v) { return flag(v.node.is_static); }},
      {"is_input", [](V v) { return flag(v.node.op == Op::Input); }},
      {"is_output",
       [](V v) {
         const std::vector<Use>& uses = uses_of(v);
         return flag(std::any_of(uses.begin(), uses.end(), [](const Use& use) { return use.node < 0; }));
       }},
      {"cost_share", [](V v) { return ratio(v.price.time_us, v.episode.initial.time_us); }},
      {"log_flops", [](V v) { return log_of(v.price.flops); }},
      {"log_bytes", [](V v) { return log_of(v.price.bytes); }},
      {"log_in_degree", [](V v) { return log_size(v.node.inputs.size()); }},
      {"log_out_degree", [](V v) { return log_size(uses_of(v).size()); }},
      {"depth", [](V v) { return static_cast<float>(v.depth); }},
  };
  return features;
}

const Features<EdgeView>& edge_features() {
  using V = const EdgeView&;
  static const Features<EdgeView> features{
      {"log_dim_", kNumDims, [](V v, float* row) { write_dims(type_of(v), row); }},
      {"log_slot", [](V v) { return log_size(v.slot); }},
      {"log_bytes", [](V v) { return log_of(type_of(v).num_bytes()); }},
      {"is_static", [](V v) { return flag(graph_of(v.episode).is_static(v.value)); }},
  };
  return features;
}

const Features<GlobalView>& global_features() {
  using V = const GlobalView&;
  static const Features<GlobalView> features{
      {"cost", [](V v) { return ratio(v.episode.state->cost_us(), v.episode.initial.time_us); }},
      {"best_cost", [](V v) { return ratio(v.episode.best_us, v.episode.initial.time_us); }},
      {"log_num_nodes", [](V v) { return log_size(v.episode.order.size()); }},
      {"log_num_edges", [](V v) { return log_size(v.episode.num_edges); }},
      {"log_num_candidates", [](V v) { return log_size(v.episode.table->size()); }},
      {"steps_left", [](V v) { return static_cast<float>(v.episode.steps_left); }},
      {"device_log_flops_per_us", [](V v) { return log_of(v.device.flops_per_us); }},
      {"device_log_bytes_per_us", [](V v) { return log_of(v.device.bytes_per_us); }},
      {"device_log_cache_bytes_per_us", [](V v) { return log_of(v.device.cache_bytes_per_us); }},
      {"device_log_cache_bytes", [](V v) { return log_of(v.device.cache_bytes); }},
      {"device_log_launch_us", [](V v) { return log_of(v.device.launch_us); }},
      {"device_log_contraction_launch_us", [](V v) { return log_of(v.device.contraction_launch_us); }},
      {"device_log_view_us", [](V v) { return log_of(v.device.view_us); }},
      {"device_views_are_free", [](V v) { return flag(v.device.views_are_free); }},
  };
  return features;
}

const Features<CandidateView>& candidate_features() {
  using V = const CandidateView&;
  static const Features<CandidateView> features{
      {"cost_delta", [](V v) { return ratio(v.action.delta.time_us, v.episode.initial.time_us); }},
      {"flops_delta", [](V v) { return ratio(v.action.delta.flops, v.episode.initial.flops); }},
      {"bytes_delta", [](V v) { return ratio(v.action.delta.bytes, v.episode.initial.bytes); }},
      {"launches_delta", [](V v) { return ratio(v.action.delta.launches, v.episode.initial.launches); }},
      {"log_num_added", [](V v) { return log_of(v.action.num_added); }},
      {"log_num_removed", [](V v) { return log_of(v.action.num_removed); }},
      {"is_macro", [](V v) { return flag(v.action.is_macro()); }},
      {"log_num_members", [](V v) { return log_size(v.action.members.size()); }},
      {"is_visited", [](V v) { return flag(v.action.is_visited); }},
  };
  return features;
}

template <class View>
void write_all(const Features<View>& features, const View& view, float* row) {
  for (const Feature<View>& each : features) {
    if (each.value != nullptr) {
      *row = each.value(view);
    } else {
      each.write(view, row);
    }
    row += each.count;
  }
}

template <class View>
void add_columns(const std::string& array, const Features<View>& features,
                 std::vector<FeatureColumn>& columns) {
  for (const Feature<View>& each : features) {
    if (each.value != nullptr) columns.push_back({array, each.name});
    for (int i = 0; i < each.count && each.value == nullptr; ++i) {
      columns.push_back({array, each.name + std::to_string(i)});
    }
  }
}

}  // namespace

void write_features(const NodeView& view, float* row) { write_all(node_features(), view, row); }
void write_features(const EdgeView& view, float* row) { write_all(edge_features(), view, row); }
void write_features(const GlobalView& view, float* row) { write_all(global_features(), view, row); }
void write_features(const CandidateView& view, float* row) { write_all(candidate_features(), view, row); }

const std::vector<FeatureColumn>& feature_columns() {
  static const std::vector<FeatureColumn> columns = [] {
    std::vector<FeatureColumn> all;
    add_columns("node", node_features(), all);
    add_columns("edge", edge_features(), all);
    add_columns("global", global_features(), all);
    add_columns("candidate", candidate_features(), all);
    return all;
  }();
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

}  // namespace rlopt
