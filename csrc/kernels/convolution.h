// Convolutions of images in channels_last, in float32: dense ones and depthwise ones.
//
// A dense one is a product whose left operand is never written down: the pixels under the kernel are read
// where they are (indirect convolution; Dukhan 2019, arXiv:1907.02129). Weights are packed once, in panels as
// wide as some vector registers. Bias, a summand and an activation are applied before a result is written.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rlopt::kernels {

/// What follows a sum; each treats NaN and infinities as ATen does.
enum class Activation : int {
  kNone = 0,
  kRelu = 1,
  kClamp = 2,      // between low and high
  kLeakyRelu = 3,  // slope low below zero
  kHardswish = 4,
  kHardsigmoid = 5,
  kSigmoid = 6,
  kSilu = 7,
};
constexpr int kNumActivations = 8;

/// Sizes in elements. The channels of a pixel are next to each other; images, rows and pixels lie anywhere.
struct Convolution {
  int64_t images, height, width, channels;
  int64_t image_stride, row_stride, pixel_stride;  // of the input
  int64_t out_height, out_width, out_channels;     // the output is dense
  int64_t kernel_height, kernel_width;
  int64_t stride_y, stride_x, pad_y, pad_x, dilation_y, dilation_x;
  bool is_depthwise;
  Activation activation;
  float low, high;

  int64_t num_taps() const { return kernel_height * kernel_width; }
};

/// Which instructions the kernels use on this machine: "avx512", "avx2", or "" where there are none.
const char* instructions();

/// More channels than this have no kernel: a pixel of zeros stands for what lies outside of the image.
constexpr int64_t kMaxChannels = 1 << 14;

/// Number of floats of a packed weight; the same for every input.
size_t packed_size(int64_t out_channels, int64_t in_channels, int64_t num_taps, bool is_depthwise);

/// Packs weight[out, in, tap] (of a depthwise one [out, 1, tap]) and bias[out], which may be null.
void pack(const float* weight, const float* bias, int64_t out_channels, int64_t in_channels, int64_t num_taps,
          bool is_depthwise, float* packed);

/// Computes out = activation(conv(in) + bias + summand).
///
/// `summand` lies as `out` does, or is null. In up to `num_threads` threads of the OpenMP that is loaded.
void convolve(const Convolution& given, const float* in, const float* packed, const float* summand,
              float* out, int num_threads);

}  // namespace rlopt::kernels
