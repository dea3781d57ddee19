#include "tools/verify/compare.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tools/verify/propose.h"

namespace rlopt {

namespace {

constexpr double kTolerance = 1e-9;  // relative to max(1, max|y|)

using Data = std::unordered_map<NodeId, RefTensor>;

int64_t count(const std::vector<int64_t>& dims) {
  int64_t size = 1;
  for (const int64_t each : dims) size *= each;
  return size;
}

/// Integer inputs used as indices must be in range: the smallest size that they index; 4 for other integers.
int64_t index_limit(const Graph& graph, NodeId id) {
  int64_t limit = 4;
  for (const Use& use : graph.uses(id)) {
    if (use.node < 0) continue;
    const Node& node = graph.node(use.node);
    const bool indexes = node.op == Op::Gather || node.op == Op::GatherElements;
    if (!indexes || use.slot != 1) continue;
    const Dims& dims = graph.type(node.inputs[0]).dims;
    const int64_t axis = node.attr_int("axis");
    limit = std::min(
        limit, dims[static_cast<size_t>(axis < 0 ? axis + static_cast<int64_t>(dims.size()) : axis)].value());
  }
  return std::max<int64_t>(limit, 1);
}

/// A variance is never negative.
bool is_variance(const Graph& graph, NodeId id) {
  const auto& uses = graph.uses(id);
  return std::any_of(uses.begin(), uses.end(), [&](const Use& use) {
    return use.node >= 0 && graph.node(use.node).op == Op::BatchNormalization && use.slot == 4;
  });
}

enum class Numbers : uint8_t { Positive, Signed, Special };

double draw_number(Random& random, Numbers numbers) {
  if (numbers == Numbers::Positive) return 0.25 + 2 * random.uniform();
  if (numbers == Numbers::Special && random.chance(0.3)) {
    constexpr double kInf = std::numeric_limits<double>::infinity();
    return random.one_of({0.0, -0.0, kInf, -kInf, std::numeric_limits<double>::quiet_NaN(), 5e-324, 1.0});
  }
  return 4 * random.uniform() - 2;
}

Data draw_data(const Graph& graph, Random& random, Arithmetic arithmetic, Numbers numbers) {
  Data data;
  for (const NodeId id : graph.inputs()) {
    const TensorType& type = graph.node(id).types->front();
    RefTensor tensor;
    for (const Dim& dim : type.dims) tensor.dims.push_back(dim.value());
    const bool is_real = is_floating(type.dtype);
    const int64_t limit = type.dtype == DType::boolean ? 2 : index_limit(graph, id);
    const Numbers mine = is_variance(graph, id) ? Numbers::Positive : numbers;
    for (int64_t i = count(tensor.dims); i > 0; --i) {
      if (arithmetic == Arithmetic::Float64) {
        tensor.doubles.push_back(is_real ? draw_number(random, mine)
                                         : static_cast<double>(random.between(0, limit - 1)));
      } else {
        tensor.ints.push_back(is_real ? random.between(0, (int64_t{1} << 31) - 2)
                                      : random.between(0, limit - 1));
      }
    }
    data[id] = std::move(tensor);
  }
  return data;
}

std::string where(const Graph& graph, size_t output, size_t element) {
  return "output " + graph.output_names()[output] + ", element " + std::to_string(element) + ": ";
}

std::string shapes_differ(const RefTensor& a, const RefTensor& b) {
  return a.dims == b.dims ? "" : "the shapes of an output differ";
}

std::string compare_exact(const Graph& graph, const std::vector<RefTensor>& a,
                          const std::vector<RefTensor>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    const std::string shapes = shapes_differ(a[i], b[i]);
    if (!shapes.empty()) return shapes;
    for (size_t k = 0; k < a[i].ints.size(); ++k) {
      if (a[i].ints[k] == b[i].ints[k]) continue;
      return where(graph, i, k) + std::to_string(a[i].ints[k]) + " before, " + std::to_string(b[i].ints[k]) +
             " after (mod 2^31-1)";
    }
  }
  return "";
}

std::string compare_reals(const Graph& graph, const std::vector<RefTensor>& a,
                          const std::vector<RefTensor>& b, double& error) {
  for (size_t i = 0; i < a.size(); ++i) {
    const std::string shapes = shapes_differ(a[i], b[i]);
    if (!shapes.empty()) return shapes;
    double scale = 1;
    for (const double value : a[i].doubles) {
      if (std::isfinite(value)) scale = std::max(scale, std::fabs(value));
    }
    for (size_t k = 0; k < a[i].doubles.size(); ++k) {
      const double x = a[i].doubles[k], y = b[i].doubles[k];
      // NaN or infinite values may become anything (a refinement); finite values must stay.
      if (x == y || !std::isfinite(x)) continue;
      const double relative = std::fabs(x - y) / scale;
      if (relative <= kTolerance) {
        error = std::max(error, relative);
        continue;
      }
      return where(graph, i, k) + attr_str(x) + " before, " + attr_str(y) + " after";
    }
  }
  return "";
}

std::string compare_bits(const Graph& graph, const std::vector<RefTensor>& a,
                         const std::vector<RefTensor>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t k = 0; k < a[i].doubles.size(); ++k) {
      const double x = a[i].doubles[k], y = b[i].doubles[k];
      const bool equal = (std::isnan(x) && std::isnan(y)) || (x == y && std::signbit(x) == std::signbit(y));
      if (!equal)
        return where(graph, i, k) + attr_str(x) + " before, " + attr_str(y) +
               " after, but it is marked exact";
    }
  }
  return "";
}

}  // namespace

Comparison compare(const Graph& before, const Graph& after, uint64_t seed, int round, bool is_exact) {
  Comparison result;
  Random random(seed);
  try {
    const Data data = draw_data(before, random, Arithmetic::Field, Numbers::Signed);
    const auto a = evaluate(before, data, Arithmetic::Field), b = evaluate(after, data, Arithmetic::Field);
    result.is_field = compare_exact(before, a, b).empty();
  } catch (const TypeError&) {
    result.is_field = false;  // an operator is undefined in the field: float64 decides
  }
  const auto in_float64 = [&](Numbers numbers, const auto& difference) {
    const Data data = draw_data(before, random, Arithmetic::Float64, numbers);
    std::vector<RefTensor> a;
    try {
      a = evaluate(before, data, Arithmetic::Float64);
    } catch (const TypeError&) {
      result.is_evaluated = false;  // not the substitution's fault
      return;
    }
    try {
      result.difference = difference(a, evaluate(after, data, Arithmetic::Float64));
    } catch (const TypeError& error) {
      result.difference = std::string("only the graph before can be evaluated: ") + error.what();
    }
  };
  if (!result.is_field) {
    in_float64(round == 0 ? Numbers::Positive : Numbers::Signed,
               [&](const auto& a, const auto& b) { return compare_reals(before, a, b, result.error); });
  }
  if (result.difference.empty() && is_exact) {
    in_float64(Numbers::Special, [&](const auto& a, const auto& b) { return compare_bits(before, a, b); });
  }
  return result;
}

}  // namespace rlopt
