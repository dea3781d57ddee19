// Device models, price tables and cost models.
#include "cost/cost.h"

#include "bindings/bind.h"

namespace rlopt {

namespace {

CostModel make_cost_model(const DeviceModel& device, const std::map<uint64_t, double>& prices,
                          const std::map<std::string, double>& scales,
                          const std::map<std::string, int64_t>& sizes) {
  if (prices.empty() && scales.empty()) return CostModel(device, nullptr, Sizes(sizes));
  auto table = std::make_shared<PriceTable>();
  for (const auto& [key, us] : prices) table->set(key, us);
  for (const auto& [name, factor] : scales) {
    const Op op = find_op(name);
    if (op_info(op).name != name) throw TypeError("no operator is named '" + name + "'");
    table->set_scale(op, factor);
  }
  return CostModel(device, std::move(table), Sizes(sizes));
}

}  // namespace

void bind_cost(py::module_& m) {
  py::class_<DeviceModel>(m, "DeviceModel", "Rates and overheads of one executor on one device (see cost.h).")
      .def(py::init<>())
      .def_readwrite("flops_per_us", &DeviceModel::flops_per_us)
      .def_readwrite("bytes_per_us", &DeviceModel::bytes_per_us)
      .def_readwrite("cache_bytes_per_us", &DeviceModel::cache_bytes_per_us)
      .def_readwrite("cache_bytes", &DeviceModel::cache_bytes)
      .def_readwrite("launch_us", &DeviceModel::launch_us)
      .def_readwrite("contraction_launch_us", &DeviceModel::contraction_launch_us)
      .def_readwrite("view_us", &DeviceModel::view_us)
      .def_readwrite("step_us", &DeviceModel::step_us)
      .def_readwrite("group_us", &DeviceModel::group_us)
      .def_readwrite("padding_us", &DeviceModel::padding_us)
      .def_readwrite("cut_us", &DeviceModel::cut_us)
      .def_readwrite("transcendental_factor", &DeviceModel::transcendental_factor)
      .def_readwrite("unpacked_factor", &DeviceModel::unpacked_factor)
      .def_readwrite("attention_factor", &DeviceModel::attention_factor)
      .def_readwrite("pool_factor", &DeviceModel::pool_factor)
      .def_readwrite("views_are_free", &DeviceModel::views_are_free)
      .def_readwrite("copies_cuts", &DeviceModel::copies_cuts)
      .def_readwrite("fuses_elementwise", &DeviceModel::fuses_elementwise)
      .def_readwrite("fuses_epilogues", &DeviceModel::fuses_epilogues);

  py::class_<CostModel>(m, "CostModel",
                        "Measured prices where there are any, an analytic roofline elsewhere.")
      .def(py::init(&make_cost_model), py::arg("device") = DeviceModel{},
           py::arg("prices") = std::map<uint64_t, double>{},
           py::arg("scales") = std::map<std::string, double>{},
           py::arg("sizes") = std::map<std::string, int64_t>{},
           "prices: microseconds by key (see `keys`). scales: factors on the analytic prices of operators.\n"
           "sizes: example sizes of symbols. Raises ModelFormatError for an unknown operator.")
      .def(
          "node",
          [](const CostModel& cost, const Graph& graph, NodeId id) {
            graph.at(id);
            return metrics_to_python(cost.node(graph, id));
          },
          py::arg("graph"), py::arg("id"), "time_us, flops, bytes and launches of one node.")
      .def(
          "total",
          [](const CostModel& cost, const Graph& graph) { return metrics_to_python(cost.total(graph)); },
          py::arg("graph"), "The same, summed over the graph.")
      .def(
          "metrics",
          [](const CostModel& cost, const Graph& graph) {
            const NodeMetrics total = cost.total(graph);
            py::dict result = metrics_to_python(total);
            result["measured_us"] = total.measured_us;
            result["peak_bytes"] = cost.peak_bytes(graph);
            return result;
          },
          py::arg("graph"),
          "`total`, and measured_us (the part of time_us that was measured) and peak_bytes (most memory "
          "that\n"
          "intermediates and results take at once).")
      .def(
          "keys",
          [](const CostModel& cost, const Graph& graph, NodeId id) {
            graph.at(id);
            const NodeKeys keys = cost.keys(graph, id);
            return py::make_tuple(keys.own, keys.context);
          },
          py::arg("graph"), py::arg("id"),
          "Keys of a node's price: of the node, and of the node among its neighbours. The same in every "
          "process.")
      .def(
          "is_measured",
          [](const CostModel& cost, const Graph& graph, NodeId id) {
            graph.at(id);
            return cost.is_measured(graph, id);
          },
          py::arg("graph"), py::arg("id"), "Whether the time of the node among its neighbours was measured.");
}

}  // namespace rlopt
