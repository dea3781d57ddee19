// Dense convolutions and products of 8-bit integers, which AVX-512 VNNI multiplies four at a time and sums in
// 32 bits, for images of float32 or bfloat16.
//
// Weights are quantised once: symmetrically, with one scale per output. The numbers of a pixel (of a row, in
// a product) are quantised in the call: x is about scale * (q - zero) with q in [0, 255], where scale and
// zero follow from the smallest and largest number of this pixel, and zero has no error. So no range has to
// be known in advance, a pixel does not depend on others, and a ReLU's results use all 8 bits. A scale is NaN
// if a number of its pixel, or a weight of its output, is not finite: then so is every result.
//
// A pixel whose numbers span less than 2^-120 counts as zeros: the inverse of its scale might be infinite.
#pragma once

#include "kernels/job.h"

namespace rlopt::kernels {

/// Terms of a sum that one lane multiplies at a time: four bytes take the space of a float.
constexpr int64_t kInt8Terms = 4;

/// Pixels are cut between these many, a multiple of the tile size of each width, where windows have one tap.
constexpr int64_t kInt8Unit = 24;

constexpr float kLeastSpan = 0x1p-120F;

/// Cache blocking of a convolution. Output pixels are counted in units: kInt8Unit pixels where windows have
/// one tap, and rows of the result where they have more, which share pixels.
struct Int8Grid {
  /// Bytes of quantised pixels that are held for all panels: they stay in L2 next to a panel.
  static constexpr int64_t kMostHeld = 3 << 17;
  /// The same where each thread holds all pixels, for its own panels.
  static constexpr int64_t kMostHeldOnce = 1 << 22;

  bool has_one_tap;
  int64_t steps;           // of a tap
  int64_t bytes_of_pixel;  // a multiple of the lanes of a vector
  int64_t pixels;          // of an image's result
  int64_t unit, units;     // output pixels; units of an image
  bool shares_panels;      // whether threads share out panels of outputs; otherwise units

  Int8Grid(const Convolution& given, int64_t num_panels, int num_threads)
      : has_one_tap(given.num_taps() == 1),
        steps((given.channels + kInt8Terms - 1) / kInt8Terms),
        bytes_of_pixel((given.channels + 15) / 16 * 16),
        pixels(given.out_height * given.out_width),
        unit(has_one_tap ? kInt8Unit : std::max<int64_t>(given.out_width, 1)),
        units((pixels + unit - 1) / unit),
        shares_panels(given.images == 1 && num_held(given, units) * bytes_of_pixel <= kMostHeldOnce &&
                      !shares_pixels(given, given.out_channels * given.num_taps()) &&
                      (num_panels >= num_threads || units < num_threads)) {}

  /// Pixels that are held for this many units.
  int64_t num_held(const Convolution& given, int64_t count) const {
    if (has_one_tap) return std::min(count * unit, pixels);
    const int64_t rows = (count - 1) * given.stride_y + (given.kernel_height - 1) * given.dilation_y + 1;
    return std::min(rows, given.height) * given.width;
  }

  /// Units that are computed at a time: at least one.
  int64_t units_at_a_time(const Convolution& given) const {
    if (shares_panels) return units;
    int64_t count = units;
    while (count > 1 && num_held(given, count) * bytes_of_pixel > kMostHeld) count = (count + 1) / 2;
    return count;
  }

  /// Floats of scratch: for each pixel its scale, its zero and its bytes.
  int64_t scratch_size(const Convolution& given) const {
    constexpr int64_t kSlack = 16;  // for alignment to a cache line
    return num_held(given, units_at_a_time(given)) * (2 + bytes_of_pixel / 4) + kSlack;
  }
};

/// Whether this machine and a convolution support the method.
bool takes_int8(int64_t groups, int64_t channels, Element element);

/// Throws std::invalid_argument if the method does not apply.
void check_int8(int64_t groups, int64_t channels, Element element);

/// Floats of a quantised weight with its bias, scales and sums.
int64_t int8_size(const WeightLayout& layout);

/// Writes bias[out], scale[out], the sums[tap, out] of the quantised weights, and these weights in panels:
/// [tap, step, out of the panel, 4 terms]. `packed` has to be zeroed.
void pack_int8(const float* weight, const float* bias, const WeightLayout& layout, int num_threads,
               float* packed);

Work int8_work(const Convolution& given, int num_threads);

}  // namespace rlopt::kernels
