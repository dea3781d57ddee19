// Reference: pools and resizing.
#include <algorithm>
#include <cmath>

#include "tools/reference/functions.h"
#include "tools/reference/kernels.h"

namespace rlopt {

namespace {

/// A window along one axis: its positions inside the input, and the number inside input and padding.
struct Span {
  Sizes inside;
  int64_t num_padded = 0;
};

std::vector<Span> spans(int64_t input, int64_t output, int64_t kernel, int64_t stride, int64_t dilation,
                        int64_t begin, int64_t end) {
  std::vector<Span> result(static_cast<size_t>(output));
  for (int64_t o = 0; o < output; ++o) {
    Span& span = result[static_cast<size_t>(o)];
    for (int64_t k = 0; k < kernel; ++k) {
      const int64_t at = o * stride + k * dilation - begin;
      if (at < input + end) ++span.num_padded;
      if (at >= 0 && at < input) span.inside.push_back(at);
    }
  }
  return result;
}

/// The windows of all spatial axes; missing leading axes are trivial.
std::array<std::vector<Span>, 3> make_spans(const Call& call) {
  const Node& node = call.node;
  const Sizes& x = call.in[0]->dims;
  const Sizes& y = call.out[0].dims;
  const size_t rank = x.size() - 2;
  const Ints& kernel = node.attr_ints("kernel_shape");
  const Window window = make_window(node.info().name, rank, node.attr_ints("strides"), node.attr_ints("pads"),
                                    node.attr_ints("dilations"));
  std::array<std::vector<Span>, 3> result;
  result.fill({Span{{0}, 1}});
  for (size_t i = 0; i < rank; ++i) {
    result[3 - rank + i] = spans(x[i + 2], y[i + 2], kernel[i], window.strides[i], window.dilations[i],
                                 window.begins[i], window.ends[i]);
  }
  return result;
}

/// Calls reduce(values of one window, number of positions in input and padding) for every output element.
template <class A, class F>
bool pool(const Call& call, F reduce) {
  using T = typename A::T;
  const Sizes& dims = call.in[0]->dims;
  const auto axes = make_spans(call);
  const int64_t width = dims.back();
  const int64_t height = dims.size() > 3 ? dims[dims.size() - 2] : 1;
  const int64_t depth = dims.size() > 4 ? dims[2] : 1;
  const auto& x = data<T>(*call.in[0]);
  auto& out = data<T>(call.out[0]);
  out.clear();
  std::vector<T> values;
  for (int64_t image = 0; image < dims[0] * dims[1]; ++image) {
    for (const Span& a : axes[0]) {
      for (const Span& b : axes[1]) {
        for (const Span& c : axes[2]) {
          values.clear();
          for (const int64_t i : a.inside) {
            for (const int64_t j : b.inside) {
              for (const int64_t k : c.inside) {
                values.push_back(x[static_cast<size_t>(((image * depth + i) * height + j) * width + k)]);
              }
            }
          }
          out.push_back(reduce(values, a.num_padded * b.num_padded * c.num_padded));
        }
      }
    }
  }
  return true;
}

template <class A>
typename A::T maximum(const std::vector<typename A::T>& values) {
  typename A::T best = A::lowest();
  for (const auto value : values) best = Functions<A>::max(best, value);
  return best;
}

template <class A>
typename A::T mean(const std::vector<typename A::T>& values, int64_t n) {
  typename A::T sum = A::from_int(0);
  for (const auto value : values) sum = A::add(sum, value);
  return A::div(sum, A::from_int(n));
}

template <class A, class F>
bool global_pool(const Call& call, F reduce) {
  using T = typename A::T;
  const auto& x = data<T>(*call.in[0]);
  auto& out = data<T>(call.out[0]);
  const int64_t images = count(call.out[0].dims);
  const int64_t size = images == 0 ? 0 : static_cast<int64_t>(x.size()) / images;
  for (int64_t i = 0; i < images; ++i) {
    out.push_back(reduce(std::vector<T>(x.begin() + i * size, x.begin() + (i + 1) * size)));
  }
  return true;
}

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
bool resize(const Call& call) {
  using T = typename A::T;
  const Node& node = call.node;
  if (node.attr_int("antialias") != 0) throw TypeError("Resize: the reference has no antialias=1");
  Sizes dims = call.in[0]->dims;
  std::vector<T> values = data<T>(*call.in[0]);
  const Sizes& target = call.out[0].dims;
  const auto& scales = std::get<Floats>(node.attr("scales"));
  for (size_t axis = 0; axis < dims.size(); ++axis) {
    const int64_t input = dims[axis];
    const int64_t output = target[axis];
    const double scale =
        scales.empty() ? static_cast<double>(output) / static_cast<double>(input) : scales[axis];
    if (input == output && scale == 1.0) continue;
    if (input == 0)
      throw TypeError("Resize: expected a non-empty input, got " + std::to_string(input) + " elements");
    int64_t inner = 1;
    for (size_t i = axis + 1; i < dims.size(); ++i) inner *= dims[i];
    dims[axis] = output;
    std::vector<T> next(static_cast<size_t>(count(dims)), A::from_int(0));
    for (int64_t o = 0; !next.empty() && o < output; ++o) {
      const double x =
          source_position(node.attr_string("coordinate_transformation_mode"), o, scale, input, output);
      const Taps taps = make_taps(node, x, input);
      for (size_t k = 0; k < taps.at.size(); ++k) {
        const T weight = A::from_double(taps.weights[k]);
        for (int64_t r = 0; r < static_cast<int64_t>(next.size()) / output; ++r) {
          const int64_t outer = r / inner;
          T& value = next[static_cast<size_t>((outer * output + o) * inner + r % inner)];
          const auto from = static_cast<size_t>((outer * input + taps.at[k]) * inner + r % inner);
          value = A::add(value, A::mul(weight, values[from]));
        }
      }
    }
    values = std::move(next);
  }
  data<T>(call.out[0]) = std::move(values);
  return true;
}

}  // namespace

template <class A>
bool eval_pool(const Call& call) {
  using T = typename A::T;
  using Values = std::vector<T>;
  switch (call.node.op) {
    case Op::MaxPool:
      return pool<A>(call, [](const Values& values, int64_t) { return maximum<A>(values); });
    case Op::AveragePool: {
      const bool with_padding = call.node.attr_int("count_include_pad") != 0;
      return pool<A>(call, [with_padding](const Values& values, int64_t padded) {
        return mean<A>(values, with_padding ? padded : static_cast<int64_t>(values.size()));
      });
    }
    case Op::GlobalMaxPool:
      return global_pool<A>(call, maximum<A>);
    case Op::GlobalAveragePool:
      return global_pool<A>(
          call, [](const Values& values) { return mean<A>(values, static_cast<int64_t>(values.size())); });
    case Op::Resize:
      return resize<A>(call);
    default:
      return false;
  }
}

template bool eval_pool<RealAlgebra>(const Call&);
template bool eval_pool<FieldAlgebra>(const Call&);
template bool eval_pool<IntAlgebra>(const Call&);

}  // namespace rlopt
