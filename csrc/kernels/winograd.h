// Convolutions with windows of 3 x 3 by Winograd's minimal filtering (Lavin and Gray 2016, arXiv:1509.09308).
//
// An output tile of m x m pixels sees (m + 2) x (m + 2) pixels of the input. These are transformed,
// multiplied by the transformed weight for each position (over all tiles a matrix product), and transformed
// back: 4 multiplications per output pixel and pair of channels for m = 2, and 2.25 for m = 4, instead of 9.
//
// Over the reals the result is the same sum; for m = 4 the interpolation points are 0, 5/8, -5/8, 3/2, -3/2
// and infinity, as in oneDNN. In float32, rounding errors are relative to the numbers under the whole tile,
// those of a direct sum to the numbers under the window of its pixel. The ratio depends on the image *and*
// the weight: a mask of zeros and ones with a weight of -1e6 is as uneven as an image with a number of 1e6.
// So a tile is computed by direct sums unless it is even, by this bound.
//
// Let u be 2^-24, C the channels, |x_c| a magnitude of channel c, W_c and w_c numbers that the packed weight
// holds for channel c (below), s_o a scale of output o, and
//
//   tile: T = sum over c of W_c * (the largest |x_c| under the tile), P = the largest term of that sum;
//   window of pixel p: E_p = sum over c of w_c * (the sum of |x_c| under the window).
//
// Each weight of output o is at most s_o * W_c. The tile computes A^T [ (G g G^T) * (B^T d B) ] A. A rounded
// number passes at most n = min(C, 64) + C / 64 + 24 operations: the blocks of the product, and the
// transforms. Ignoring underflow, the usual bound (Higham 2002, section 3.1) for all of them is
//
//   |error at p, o| <= n u (|A^T| [ (|G| |g| |G^T|) * (|B^T| |d| |B|) ] |A|)_p <= n u k T s_o,
//
// where k is the square of the largest of  sum over i of |A_ij| * (sum of |G_i|) * (sum of |B_i|)  over
// outputs j of an axis: 64 for m = 2 and 564 for m = 4. The bound of a direct sum with weights that large is
// 9 C u s_o times the sum over c of W_c * (the sum of |x_c| under the window), which is at least
// 9 C u s_o E_p, since w_c <= W_c. A tile is even if
//
//   T <= kMostOfAll * E_p  and  P * sqrt(C) <= kMostOfOne * E_p  for each of its pixels p,
//
// and so the bound of the tile is at most  K = kMostOfAll * n * k / (9 C)  times that of a direct sum: 5,600
// for m = 4 and 630 for m = 2 at 64 channels, 750 and 85 at 512. Both bounds are worst cases; real rounding
// errors are random and far smaller. This is what the second condition is for: one number of a channel that
// is by far the largest makes an error of some 700 u (m = 4) of itself, which then is less than a thousandth
// of a usual result (tests/kernels/test_winograd_bound.py measures it).
//
// E_p has to be small if the inputs of an output are, even for uneven weights. The terms |weight| * |x_c| of
// a single output give no such bound, because any single weight may be close to zero. So
//
//   s_o = the median of the mean magnitudes that output o's weights have in each channel that it reads,
//   W_c = the largest |weight| of channel c over s_o, of all outputs and taps,
//   w_c = the mean |weight| of channel c over s_o, at most 1, times the share of output o's lightest tap
//         in the mean tap; of all outputs, the value that nine tenths of them reach.
//
// A few weights that are by far the largest affect W_c but not s_o or w_c; a channel that some outputs do not
// read, or a window whose heavy tap is elsewhere, does not make a window look large to them. If not even an
// image of ones would be even, there are no tiles. A window that sees only zeros has the sum zero.
#pragma once

#include "kernels/job.h"

namespace rlopt::kernels {

constexpr float kWinogradA = 0.625F, kWinogradB = 1.5F;

/// Maximum ratio of an even tile to each of its windows (above), for all channels together and for one
/// channel over sqrt(channels). For convolutions with random weights of any usual kind, over images with
/// edges and dark parts, more than 99 % of the tiles are even: there T is 3 to 30 times E_p and P * sqrt(C)
/// 0.5 to 14 times.
constexpr float kMostOfAll = 64.0F, kMostOfOne = 32.0F;

inline bool has_tiles(Method method) { return method == Method::kTiles2 || method == Method::kTiles4; }

/// Whether a convolution supports tiles.
bool can_have_tiles(const Convolution& given);

/// The tiles of an output.
struct WinogradGrid {
  int64_t tile, images, rows, columns;

  explicit WinogradGrid(const Convolution& given) : WinogradGrid(given, static_cast<int64_t>(given.method)) {}
  WinogradGrid(const Convolution& given, int64_t tile)
      : tile(tile),
        images(given.images),
        rows((given.out_height + tile - 1) / tile),
        columns((given.out_width + tile - 1) / tile) {}

  struct Place {
    int64_t image, y, x;  // of its first output pixel
  };

  int64_t positions() const { return (tile + 2) * (tile + 2); }
  int64_t count() const { return images * rows * columns; }

  Place place(int64_t at) const {
    return {at / (rows * columns), at / columns % rows * tile, at % columns * tile};
  }

  /// Whether threads share out tiles; otherwise output channels. Same rule as `shares_pixels`.
  bool shares_tiles(int64_t out_channels) const { return count() > out_channels; }
};

/// A transformed weight begins with this many floats; the first says whether tiles are disabled. Tiles fail
/// with weights that are not finite, they round where weights of integers (or 256ths) give exact sums, and a
/// weight may be too uneven.
constexpr int64_t kWinogradFlags = 16;

/// The flags are followed by W_c and w_c of each channel, as whole vectors, and then by the weight itself.
constexpr int64_t winograd_channels(int64_t channels) {
  constexpr int64_t kWidestVector = 16;
  return (channels + kWidestVector - 1) / kWidestVector * kWidestVector;
}
constexpr int64_t winograd_head(int64_t channels) { return kWinogradFlags + 2 * winograd_channels(channels); }

/// Scratch for tiles that are computed together, in floats: transformed inputs [position, tile, channel], and
/// products [position, tile, channel of a panel].
struct WinogradBlock {
  /// Padding of a cache line between positions: at a power of two they would map to the same cache set.
  static constexpr int64_t kGap = 16;

  int64_t positions, tiles;
  int64_t width;  // channels of the input, rounded up to whole vectors
  int64_t panel;  // channels of the widest panel

  WinogradBlock(const Convolution& given, int64_t tiles, int64_t panel)
      : positions(WinogradGrid(given).positions()),
        tiles(tiles),
        width(winograd_channels(given.channels)),
        panel(panel) {}

  int64_t input_stride() const { return tiles * width + kGap; }
  int64_t product_stride() const { return tiles * panel + kGap; }
  int64_t inputs() const { return positions * input_stride(); }
  int64_t size() const { return inputs() + positions * product_stride(); }
};

/// Tiles computed together are a multiple of the number whose sums fit in registers, or a few more if that
/// covers them all: each block reads the weights.
constexpr int64_t most_tiles_of_block(int64_t unit) { return unit * 5 / 4; }

/// Floats of the transformed weight. It follows the weight packed for the direct method, which some tiles
/// need.
int64_t winograd_size(int64_t out_channels, int64_t in_channels, Method method, Element element);

/// Writes the transformed weight[out, in, 3, 3], in panels: [position, in, out of the panel]. `packed` has to
/// be zeroed.
void pack_winograd(const float* weight, int64_t out_channels, int64_t in_channels, Method method,
                   Element element, int num_threads, float* packed);

/// Estimated time of the tiles, in multiplications of the direct method.
double time_of_tiles(const Convolution& given, int64_t tile);

/// A convolution by tiles.
Work winograd_work(const Convolution& given, int num_threads);

}  // namespace rlopt::kernels
