// Reference: resizing.
#include <algorithm>
#include <cmath>

#include "tools/reference/kernels.h"

namespace rlopt {

namespace {

/// Weights of one output position of Resize, and the corresponding input positions.
struct Taps {
  std::vector<int64_t> at;
  std::vector<double> weights;
};

/// The input position, in input elements, that an output position reads.
double source_position(const std::string& mode, int64_t i, double scale, int64_t input, int64_t output) {
  const auto position = static_cast<double>(i);
  const double full = scale * static_cast<double>(input);
  if (mode == "half_pixel") return (position + 0.5) / scale - 0.5;
  if (mode == "asymmetric") return position / scale;
  if (mode == "align_corners") {
    return output == 1 ? 0.0 : position * static_cast<double>(input - 1) / static_cast<double>(output - 1);
  }
  if (mode == "pytorch_half_pixel") return output == 1 ? -0.5 : (position + 0.5) / scale - 0.5;
  if (mode == "half_pixel_symmetric") {
    const double centre = static_cast<double>(input) / 2 * (1 - static_cast<double>(output) / full);
    return centre + (position + 0.5) / scale - 0.5;
  }
  throw TypeError(
      "Resize: expected a coordinate_transformation_mode of half_pixel, half_pixel_symmetric, "
      "pytorch_half_pixel, align_corners or asymmetric, got \"" +
      mode + "\"");
}

int64_t nearest(const std::string& mode, double x) {
  const double floor = std::floor(x);
  double result = floor;
  if (mode == "ceil") {
    result = std::ceil(x);
  } else if (mode == "round_prefer_floor") {
    result = x - floor <= 0.5 ? floor : floor + 1;
  } else if (mode == "round_prefer_ceil") {
    result = x - floor < 0.5 ? floor : floor + 1;
  } else if (mode != "floor") {
    throw TypeError("Resize: expected a nearest_mode of floor, ceil or round_prefer_*, got \"" + mode + "\"");
  }
  return static_cast<int64_t>(result);
}

Taps make_taps(const Node& node, double x, int64_t input) {
  const std::string& mode = node.attr_string("mode");
  const auto base = static_cast<int64_t>(std::floor(x));
  const double t = x - std::floor(x);
  Taps taps;
  if (mode == "nearest") {
    taps = {{nearest(node.attr_string("nearest_mode"), x)}, {1.0}};
  } else if (mode == "linear") {
    taps = {{base, base + 1}, {1 - t, t}};
  } else {
    const double a = node.attr_float("cubic_coeff_a");
    const auto near = [a](double d) { return ((a + 2) * d - (a + 3)) * d * d + 1; };
    const auto far = [a](double d) { return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a; };
    taps = {{base - 1, base, base + 1, base + 2}, {far(t + 1), near(t), near(1 - t), far(2 - t)}};
  }
  if (node.attr_int("exclude_outside") != 0) {
    double sum = 0;
    for (size_t i = 0; i < taps.at.size(); ++i) {
      if (taps.at[i] < 0 || taps.at[i] >= input) taps.weights[i] = 0;
      sum += taps.weights[i];
    }
    for (double& weight : taps.weights) weight /= sum == 0 ? 1.0 : sum;
  }
  for (int64_t& at : taps.at) at = std::clamp<int64_t>(at, 0, input - 1);
  return taps;
}

/// One axis after the other: interpolation is separable.
template <class A>
void resize(const Call& call) {
  using T = typename A::T;
  const Node& node = call.node;
  if (node.attr_int("antialias") != 0) throw TypeError("Resize: the reference has no antialias=1");
  Sizes dims = call.in[0]->dims;
  std::vector<T> values = call.operand<T>();
  const Sizes& target = call.out[0].dims;
  const auto& scales = std::get<Floats>(node.attr("scales"));
  for (size_t axis = 0; axis < dims.size(); ++axis) {
    const int64_t input = dims[axis], output = target[axis];
    const double scale =
        scales.empty() ? static_cast<double>(output) / static_cast<double>(input) : scales[axis];
    if (input == output && scale == 1.0) continue;
    if (input == 0)
      throw TypeError("Resize: expected a non-empty input, got " + std::to_string(input) + " elements");
    const Rows from(dims, axis);
    dims[axis] = output;
    const Rows to(dims, axis);
    std::vector<T> next(static_cast<size_t>(count(dims)), A::from_int(0));
    for (int64_t o = 0; !next.empty() && o < output; ++o) {
      const double x =
          source_position(node.attr_string("coordinate_transformation_mode"), o, scale, input, output);
      const Taps taps = make_taps(node, x, input);
      for (size_t k = 0; k < taps.at.size(); ++k) {
        const T weight = A::from_double(taps.weights[k]);
        for (int64_t r = 0; r < to.count(); ++r) {
          T& value = next[to.start(r) + o * to.inner];
          value = A::add(value, A::mul(weight, values[from.start(r) + taps.at[k] * from.inner]));
        }
      }
    }
    values = std::move(next);
  }
  data<T>(call.out[0]) = std::move(values);
}

}  // namespace

template <class A>
std::vector<KernelRow> resize_rows() {
  return {{Op::Resize, resize<A>}};
}

RLOPT_INSTANTIATE(resize_rows)

}  // namespace rlopt
