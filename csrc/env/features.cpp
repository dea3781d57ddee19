#include "env/features.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "env/observation.h"

namespace rlopt {

namespace {

constexpr int kNumDims = 6;   // the last dims of a shape are features
constexpr int kNumAttrs = 6;  // the first numbers among the attributes are features

float log_of(double value) { return static_cast<float>(std::log2(1 + std::fabs(value))); }
float signed_log(double value) { return value < 0 ? -log_of(value) : log_of(value); }
float ratio(double part, double whole) { return static_cast<float>(whole > 0 ? part / whole : 0); }
float flag(bool value) { return value ? 1.0F : 0.0F; }
float log_size(size_t size) { return log_of(static_cast<double>(size)); }

/// The last dims, left-padded.
void write_dims(const TensorType& type, float* row) {
  const int rank = type.rank();
  for (int i = kNumDims; i > 0; --i) {
    *row++ = i > rank ? 0.0F : log_of(Sizes().extent(type.dims[at(rank - i)]));
  }
}

/// The first numbers, including those in lists of integers, right-padded.
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

/// A row of a table: a feature with one column. The tables are tuples of the functions themselves, so that no
/// call goes through a pointer.
template <class F>
struct One {
  const char* name;
  F value;

  template <class View>
  float* write(const View& view, float* row) const {
    *row = value(view);
    return row + 1;
  }
  std::vector<std::string> columns() const { return {name}; }
};
template <class F>
One(const char*, F) -> One<F>;

/// A feature with several columns, numbered from 0.
template <class F>
struct Several {
  const char* name;
  int count;
  F fill;

  template <class View>
  float* write(const View& view, float* row) const {
    fill(view, row);
    return row + count;
  }
  std::vector<std::string> columns() const {
    std::vector<std::string> names;
    for (int i = 0; i < count; ++i) names.push_back(name + std::to_string(i));
    return names;
  }
};
template <class F>
Several(const char*, int, F) -> Several<F>;

constexpr std::tuple kNodeFeatures{
    Several{"log_dim_", kNumDims, [](const NodeView& v, float* row) { write_dims(type_of(v), row); }},
    One{"rank", [](const NodeView& v) { return static_cast<float>(type_of(v).rank()); }},
    One{"is_float", [](const NodeView& v) { return flag(is_floating(type_of(v).dtype)); }},
    One{"is_integer", [](const NodeView& v) { return flag(is_integer(type_of(v).dtype)); }},
    One{"log_item_bytes", [](const NodeView& v) { return log_of(dtype_bytes(type_of(v).dtype)); }},
    One{"log_num_outputs", [](const NodeView& v) { return log_of(v.node.num_outputs()); }},
    Several{"log_attr_", kNumAttrs, [](const NodeView& v, float* row) { write_attrs(*v.node.attrs, row); }},
    One{"is_weight", [](const NodeView& v) { return flag(v.node.op == Op::Weight); }},
    One{"is_constant", [](const NodeView& v) { return flag(v.node.op == Op::Constant); }},
    One{"is_static", [](const NodeView& v) { return flag(v.node.is_static); }},
    One{"is_input", [](const NodeView& v) { return flag(v.node.op == Op::Input); }},
    One{"is_output",
        [](const NodeView& v) {
          const std::vector<Use>& uses = uses_of(v);
          return flag(std::any_of(uses.begin(), uses.end(), [](const Use& use) { return use.node < 0; }));
        }},
    One{"cost_share", [](const NodeView& v) { return ratio(v.price.time_us, v.episode.initial.time_us); }},
    One{"log_flops", [](const NodeView& v) { return log_of(v.price.flops); }},
    One{"log_bytes", [](const NodeView& v) { return log_of(v.price.bytes); }},
    One{"log_in_degree", [](const NodeView& v) { return log_size(v.node.inputs.size()); }},
    One{"log_out_degree", [](const NodeView& v) { return log_size(uses_of(v).size()); }},
    One{"depth", [](const NodeView& v) { return static_cast<float>(v.depth); }}};

constexpr std::tuple kEdgeFeatures{
    Several{"log_dim_", kNumDims, [](const EdgeView& v, float* row) { write_dims(type_of(v), row); }},
    One{"log_slot", [](const EdgeView& v) { return log_size(v.slot); }},
    One{"log_bytes", [](const EdgeView& v) { return log_of(Sizes().bytes(type_of(v))); }},
    One{"is_static", [](const EdgeView& v) { return flag(graph_of(v.episode).is_static(v.value)); }}};

constexpr std::tuple kGlobalFeatures{
    One{"cost",
        [](const GlobalView& v) { return ratio(v.episode.state->cost_us(), v.episode.initial.time_us); }},
    One{"best_cost", [](const GlobalView& v) { return ratio(v.episode.best_us, v.episode.initial.time_us); }},
    One{"log_num_nodes", [](const GlobalView& v) { return log_size(v.episode.order.size()); }},
    One{"log_num_edges", [](const GlobalView& v) { return log_size(v.episode.num_edges); }},
    One{"log_num_candidates", [](const GlobalView& v) { return log_size(v.episode.table->size()); }},
    One{"steps_left", [](const GlobalView& v) { return static_cast<float>(v.episode.steps_left); }},
    One{"device_log_flops_per_us", [](const GlobalView& v) { return log_of(v.device.flops_per_us); }},
    One{"device_log_bytes_per_us", [](const GlobalView& v) { return log_of(v.device.bytes_per_us); }},
    One{"device_log_cache_bytes_per_us",
        [](const GlobalView& v) { return log_of(v.device.cache_bytes_per_us); }},
    One{"device_log_cache_bytes", [](const GlobalView& v) { return log_of(v.device.cache_bytes); }},
    One{"device_log_launch_us", [](const GlobalView& v) { return log_of(v.device.launch_us); }},
    One{"device_log_contraction_launch_us",
        [](const GlobalView& v) { return log_of(v.device.contraction_launch_us); }},
    // No `step_us`, `group_us`, `padding_us`, `cut_us`: agents trained earlier do not have these features.
    One{"device_log_view_us", [](const GlobalView& v) { return log_of(v.device.view_us); }},
    One{"device_views_are_free", [](const GlobalView& v) { return flag(v.device.views_are_free); }}};

constexpr std::tuple kCandidateFeatures{
    One{"cost_delta",
        [](const CandidateView& v) { return ratio(v.action.delta.time_us, v.episode.initial.time_us); }},
    One{"flops_delta",
        [](const CandidateView& v) { return ratio(v.action.delta.flops, v.episode.initial.flops); }},
    One{"bytes_delta",
        [](const CandidateView& v) { return ratio(v.action.delta.bytes, v.episode.initial.bytes); }},
    One{"launches_delta",
        [](const CandidateView& v) { return ratio(v.action.delta.launches, v.episode.initial.launches); }},
    One{"log_num_added", [](const CandidateView& v) { return log_of(v.action.num_added); }},
    One{"log_num_removed", [](const CandidateView& v) { return log_of(v.action.num_removed); }},
    One{"is_macro", [](const CandidateView& v) { return flag(v.action.is_macro()); }},
    One{"log_num_members", [](const CandidateView& v) { return log_size(v.action.members.size()); }},
    One{"is_visited", [](const CandidateView& v) { return flag(v.action.is_visited); }}};

template <class Table, class View>
void write_all(const Table& table, const View& view, float* row) {
  std::apply([&](const auto&... each) { ((row = each.write(view, row)), ...); }, table);
}

template <class Table>
void add_columns(const char* array, const Table& table, std::vector<FeatureColumn>& columns) {
  const auto add = [&](const std::vector<std::string>& names) {
    for (const std::string& name : names) columns.push_back({array, name});
  };
  std::apply([&](const auto&... each) { (add(each.columns()), ...); }, table);
}

}  // namespace

void write_features(const NodeView& view, float* row) { write_all(kNodeFeatures, view, row); }
void write_features(const EdgeView& view, float* row) { write_all(kEdgeFeatures, view, row); }
void write_features(const GlobalView& view, float* row) { write_all(kGlobalFeatures, view, row); }
void write_features(const CandidateView& view, float* row) { write_all(kCandidateFeatures, view, row); }

const std::vector<FeatureColumn>& feature_columns() {
  static const std::vector<FeatureColumn> columns = [] {
    std::vector<FeatureColumn> all;
    add_columns("node", kNodeFeatures, all);
    add_columns("edge", kEdgeFeatures, all);
    add_columns("global", kGlobalFeatures, all);
    add_columns("candidate", kCandidateFeatures, all);
    return all;
  }();
  return columns;
}

int num_columns(const std::string& array) {
  return static_cast<int>(std::count_if(feature_columns().begin(), feature_columns().end(),
                                        [&](const FeatureColumn& column) { return column.array == array; }));
}

}  // namespace rlopt
