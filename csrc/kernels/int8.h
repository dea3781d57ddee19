// Dense convolutions and products of 8-bit integers, which AVX-512 VNNI multiplies four at a time and sums in
// 32 bits, for images of float32 or bfloat16; from a few pixels on, a matrix unit (Intel's AMX-INT8), with
// the same results.
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

/// Rows of a tile of the matrix unit, and steps of a tap that it multiplies at most at a time.
constexpr int64_t kInt8Tile = 16;

/// Pixels of a block of results on the unit: two tiles.
constexpr int64_t kInt8Block = 2 * kInt8Tile;

/// Steps of a tap, of kInt8Terms channels each: blocks of one size, because a tile register has one shape
/// during a call. The last steps may lack terms, or have none: there, weights are zeros.
struct Int8Steps {
  int64_t of_block, count;

  explicit Int8Steps(int64_t channels) {
    const int64_t needed = (channels + kInt8Terms - 1) / kInt8Terms,
                  blocks = (needed + kInt8Tile - 1) / kInt8Tile;
    of_block = (needed + blocks - 1) / blocks;
    count = blocks * of_block;
  }
};

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
  Int8Steps steps;
  int64_t bytes_of_pixel;  // from one to the next, a multiple of the lanes of a vector
  int64_t pixels;          // of an image's result
  int64_t unit, units;     // output pixels; units of an image
  bool shares_panels;      // whether threads share out panels of outputs; otherwise units

  Int8Grid(const Convolution& given, int64_t num_panels, int num_threads)
      : has_one_tap(given.num_taps() == 1),
        steps(given.channels),
        bytes_of_pixel(place_of_pixel(steps.count * kInt8Terms)),
        pixels(given.out_height * given.out_width),
        unit(has_one_tap ? kInt8Unit : std::max<int64_t>(given.out_width, 1)),
        units((pixels + unit - 1) / unit),
        shares_panels(given.images == 1 && num_held(given, units) * bytes_of_pixel <= kMostHeldOnce &&
                      !shares_pixels(given, given.out_channels * given.num_taps()) &&
                      (num_panels >= num_threads || units < num_threads)) {}

  /// Whole cache lines if there are more than one, and an odd number of them if there are many: otherwise the
  /// rows of a tile compete for few sets of L1, and the unit took up to 1.14 times as long.
  static int64_t place_of_pixel(int64_t bytes) {
    constexpr int64_t kLine = 64, kMany = 4;
    if (bytes <= kLine) return (bytes + 15) / 16 * 16;
    const int64_t lines = (bytes + kLine - 1) / kLine;
    return (lines > kMany ? lines | 1 : lines) * kLine;
  }

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

  /// On the matrix unit: windows of several taps whose pixels are copied at a time, in whole blocks.
  int64_t num_windows(const Convolution& given) const {
    if (has_one_tap) return 0;
    const int64_t fitting = kMostHeld / (given.num_taps() * bytes_of_pixel) / kInt8Block,
                  needed = (pixels + kInt8Block - 1) / kInt8Block;
    return std::max<int64_t>(std::min(fitting, needed), 1) * kInt8Block;
  }

  /// Floats of scratch with these copies, and a block more: the unit reads whole tiles, of which the pixels
  /// behind the last one are ignored.
  int64_t scratch_size_in_unit(const Convolution& given) const {
    const int64_t copied = num_windows(given) * given.num_taps() + kInt8Block;
    return scratch_size(given) + copied * (2 + bytes_of_pixel / 4);
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
