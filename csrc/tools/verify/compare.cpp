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
    limit = std::min(limit, dims[at(axis < 0 ? axis + static_cast<int64_t>(dims.size()) : axis)].value());
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

/// Where an output first differs, by accepts(before, after, the output's largest magnitude or 1); empty if
/// nowhere. `suffix` ends the text.
template <class Accepts>
std::string find_difference(const Graph& graph, const std::vector<RefTensor>& a,
                            const std::vector<RefTensor>& b, const Accepts& accepts,
                            const std::string& suffix = "") {
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].dims != b[i].dims) return "the shapes of an output differ";
    double scale = 1;
    for (const double value : a[i].doubles) {
      if (std::isfinite(value)) scale = std::max(scale, std::fabs(value));
    }
    for (size_t k = 0; k < a[i].doubles.size(); ++k) {
      const double x = a[i].doubles[k], y = b[i].doubles[k];
      if (accepts(x, y, scale)) continue;
      return "output " + graph.output_names()[i] + ", element " + std::to_string(k) + ": " + attr_str(x) +
             " before, " + attr_str(y) + " after" + suffix;
    }
  }
  return "";
}

bool are_same_bits(double x, double y) {
  return (std::isnan(x) && std::isnan(y)) || (x == y && std::signbit(x) == std::signbit(y));
}

}  // namespace

Comparison compare(const Graph& before, const Graph& after, uint64_t seed, int round, bool is_exact) {
  Comparison result;
  Random random(seed);
  try {
    const Data data = draw_data(before, random, Arithmetic::Field, Numbers::Signed);
    const auto a = evaluate(before, data, Arithmetic::Field), b = evaluate(after, data, Arithmetic::Field);
    result.is_field = std::equal(a.begin(), a.end(), b.begin(), [](const RefTensor& x, const RefTensor& y) {
      return x.dims == y.dims && x.ints == y.ints;
    });
  } catch (const TypeError&) {
    result.is_field = false;  // an operator is undefined in the field: float64 decides
  }
  const auto in_float64 = [&](Numbers numbers, const auto& accepts, const std::string& suffix = "") {
    const Data data = draw_data(before, random, Arithmetic::Float64, numbers);
    std::vector<RefTensor> a;
    try {
      a = evaluate(before, data, Arithmetic::Float64);
    } catch (const TypeError& error) {
      result.unevaluated = error.what();  // not the substitution's fault
      return;
    }
    try {
      const std::vector<RefTensor> b = evaluate(after, data, Arithmetic::Float64);
      result.difference = find_difference(before, a, b, accepts, suffix);
    } catch (const TypeError& error) {
      result.difference = std::string("only the graph before can be evaluated: ") + error.what();
    }
  };
  if (!result.is_field) {
    in_float64(round == 0 ? Numbers::Positive : Numbers::Signed, [&](double x, double y, double scale) {
      // NaN or infinite values may become anything (a refinement); finite values must stay.
      if (x == y || !std::isfinite(x)) return true;
      const double relative = std::fabs(x - y) / scale;
      if (relative <= kTolerance) result.error = std::max(result.error, relative);
      return relative <= kTolerance;
    });
  }
  if (result.difference.empty() && is_exact) {
    in_float64(
        Numbers::Special, [](double x, double y, double) { return are_same_bits(x, y); },
        ", but it is marked exact");
  }
  return result;
}

}  // namespace rlopt
