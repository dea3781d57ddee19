// What the kernels compute, one number after the other in float64, and how large what they add up is.
#pragma once

#include <cmath>
#include <limits>

#include "draws.h"
#include "kernels/convolution.h"

namespace rlopt::fuzz {

using kernels::Activation;

/// A result, and the sum of the magnitudes of its terms.
struct Sum {
  double value = 0, size = 0;

  void add(double term) { value += term, size += std::abs(term); }
};

inline double activated(double x, Activation kind, double low, double high) {
  const auto gate = [&] { return std::min(std::max(x + 3, 0.0), 6.0) / 6; };
  switch (kind) {
    case Activation::kNone:
      return x;
    case Activation::kRelu:
      return std::max(x, 0.0);
    case Activation::kClamp:
      return std::min(std::max(x, low), high);
    case Activation::kLeakyRelu:
      return x < 0 ? x * low : x;
    case Activation::kHardswish:
      return x * gate();
    case Activation::kHardsigmoid:
      return gate();
    case Activation::kSigmoid:
      return 1 / (1 + std::exp(-x));
    case Activation::kSilu:
      return x / (1 + std::exp(-x));
    case Activation::kTanh:
      return std::tanh(x);
    case Activation::kGelu:
      return x * 0.5 * std::erfc(-x * std::sqrt(0.5));
    case Activation::kGeluTanh:
      return x * 0.5 * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
  }
  return x;
}

/// A convolution at one place, without what follows it. `weight` is [out, in of the group, taps].
inline Sum convolved(const Tensor& in, const float* weight, const float* bias, const kernels::Window& window,
                     int64_t groups, int64_t n, int64_t out, int64_t y, int64_t x) {
  const int64_t inputs = in.shape.sizes[1] / groups, outputs = window.out_channels / groups;
  Sum sum;
  if (bias != nullptr) sum.add(bias[out]);
  for (int64_t ky = 0; ky < window.kernel_height; ++ky) {
    for (int64_t kx = 0; kx < window.kernel_width; ++kx) {
      const int64_t at_y = y * window.stride_y - window.pad_y + ky * window.dilation_y,
                    at_x = x * window.stride_x - window.pad_x + kx * window.dilation_x;
      if (at_y < 0 || at_y >= in.shape.sizes[2] || at_x < 0 || at_x >= in.shape.sizes[3]) continue;
      for (int64_t c = 0; c < inputs; ++c)
        sum.add(in.at(n, out / outputs * inputs + c, at_y, at_x) *
                weight[((out * inputs + c) * window.kernel_height + ky) * window.kernel_width + kx]);
    }
  }
  return sum;
}

/// A pool at one place. Of a mean `size` is the sum over the window.
inline Sum pooled(const Tensor& in, const kernels::Window& window, kernels::Pool kind, int64_t n, int64_t c,
                  int64_t y, int64_t x) {
  Sum sum;
  double most = -std::numeric_limits<double>::infinity();
  int64_t inside = 0, padded = 0;
  for (int64_t ky = 0; ky < window.kernel_height; ++ky) {
    for (int64_t kx = 0; kx < window.kernel_width; ++kx) {
      const int64_t at_y = y * window.stride_y - window.pad_y + ky * window.dilation_y,
                    at_x = x * window.stride_x - window.pad_x + kx * window.dilation_x;
      // A window that ends outside counts what is padded, and nothing beyond.
      if (at_y < in.shape.sizes[2] + window.pad_y && at_x < in.shape.sizes[3] + window.pad_x) ++padded;
      if (at_y < 0 || at_y >= in.shape.sizes[2] || at_x < 0 || at_x >= in.shape.sizes[3]) continue;
      ++inside;
      most = std::max(most, in.at(n, c, at_y, at_x));
      sum.add(in.at(n, c, at_y, at_x));
    }
  }
  if (kind == kernels::Pool::kMax) return {most, std::abs(most)};
  const double count = static_cast<double>(kind == kernels::Pool::kMean ? padded : inside);
  return {sum.value / count, sum.size / count};
}

}  // namespace rlopt::fuzz
