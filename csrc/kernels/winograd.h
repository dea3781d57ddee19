// Convolutions with windows of 3 x 3 by Winograd's minimal filtering (Lavin and Gray 2016, arXiv:1509.09308).
//
// An output tile of m x m pixels sees (m + 2) x (m + 2) of the input. These are transformed, multiplied by
// the transformed weight for each position (over all tiles the product of two matrices), and transformed
// back: for each output pixel and pair of channels 4 multiplications where m is 2, and 2.25 where it is 4, in
// place of 9.
//
// Over the reals it is the same sum, for m = 4 with the points of interpolation 0, 5/8, -5/8, 3/2, -3/2 and
// infinity, which are oneDNN's. In float32 rounding is relative to what is under the whole tile, that of a
// sum to what is under the window of its pixel. How much more that is depends on the image *and* the weight:
// a mask of zeros and ones whose weight is -1e6 is as uneven as an image with a number of 1e6 in it. So a
// tile is computed as sums unless it is even, by this bound.
//
// Let u be 2^-24, C the channels, |x_c| a magnitude of channel c, W_c and w_c what the packed weight has for
// it (below), s_o a scale of output o, and
//
//   tile: T = sum over c of W_c * (the largest |x_c| under the tile), P = the largest term of that sum;
//   window of pixel p: E_p = sum over c of w_c * (the sum of |x_c| under the window).
//
// Each weight of output o is s_o * W_c at most. The tile computes A^T [ (G g G^T) * (B^T d B) ] A. What is
// rounded passes n = min(C, 64) + C / 64 + 24 operations at most: the blocks of the product, and the
// transforms. The usual bound (Higham 2002, section 3.1) for all of them is, without what underflows,
//
//   |error at p, o| <= n u (|A^T| [ (|G| |g| |G^T|) * (|B^T| |d| |B|) ] |A|)_p <= n u k T s_o,
//
// where k is the square of the largest of  sum over i of |A_ij| * (sum of |G_i|) * (sum of |B_i|)  over
// outputs j of an axis: 64 for m = 2 and 564 for m = 4. The bound of a sum of the products one by one over
// weights that large is 9 C u s_o times the sum over c of W_c * (the sum of |x_c| under the window), which is
// 9 C u s_o E_p at least, since w_c <= W_c. A tile is even where
//
//   T <= kMostOfAll * E_p  and  P * sqrt(C) <= kMostOfOne * E_p  for each of its pixels p,
//
// and so the bound of the tile is at most  K = kMostOfAll * n * k / (9 C)  times that of a sum: 5,600 for
// m = 4 and 630 for m = 2 at 64 channels, 750 and 85 at 512. These are bounds of two worst cases; what
// rounding does is far less, as it is random, and the second condition is for that: one number that is by far
// the largest, of a channel, makes an error of some 700 u (m = 4) of itself, which then is less than a
// thousandth of what a result usually is (tests/kernels/test_winograd_bound.py measures it).
//
// E_p has to be small where what an output sees is, also of weights that are not even themselves. There is no
// such bound over the terms |weight| * |x_c| of one output, as any single weight may be next to zero. So
//
//   s_o = the median of the mean magnitudes that output o's weights have in each channel that it reads,
//   W_c = the largest |weight| of channel c over s_o, of all outputs and taps,
//   w_c = the mean |weight| of channel c over s_o, at most 1, times the share of output o's lightest tap
//         in the mean tap; of all outputs that which nine tenths of them reach.
//
// A few weights that are by far the largest are in W_c and not in s_o or w_c; a channel that some outputs do
// not read, or a window whose heavy tap is elsewhere, does not make a window look large to them. Where not
// even an image of ones would be even there are no tiles. A window that sees zeros only has the sum zero.
#pragma once

#include "kernels/job.h"

namespace rlopt::kernels {

constexpr float kWinogradA = 0.625F, kWinogradB = 1.5F;

/// An even tile has at most so many times as much, of all channels together and of one over sqrt(channels),
/// as each of its windows (above). Of convolutions with random weights of any usual kind, over images with
/// edges and dark parts, more than 99 % of the tiles are even: there T is 3 to 30 and the other 0.5 to 14
/// times E_p.
constexpr float kMostOfAll = 64.0F, kMostOfOne = 32.0F;

inline bool has_tiles(Method method) { return method == Method::kTiles2 || method == Method::kTiles4; }

/// Whether there are tiles for a convolution.
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
    int64_t image, y, x;  // of its first output
  };

  int64_t positions() const { return (tile + 2) * (tile + 2); }
  int64_t count() const { return images * rows * columns; }

  Place place(int64_t at) const {
    return {at / (rows * columns), at / columns % rows * tile, at % columns * tile};
  }

  /// Whether threads share out tiles, or else output channels: as `shares_pixels`.
  bool shares_tiles(int64_t out_channels) const { return count() > out_channels; }
};

/// A transformed weight begins with so many floats, of which the first says that there are no tiles: a weight
/// that is not finite spoils them, one of integers (or 256ths) gives exact sums, where tiles round, and one
/// may be too uneven.
constexpr int64_t kWinogradFlags = 16;

/// Behind them W_c and w_c of each channel, as whole vectors, and then the weight itself.
constexpr int64_t winograd_channels(int64_t channels) {
  constexpr int64_t kWidestVector = 16;
  return (channels + kWidestVector - 1) / kWidestVector * kWidestVector;
}
constexpr int64_t winograd_head(int64_t channels) { return kWinogradFlags + 2 * winograd_channels(channels); }

/// What some tiles that are computed together need of scratch, in floats: transformed inputs
/// [position, tile, channel], and products [position, tile, channel of a panel].
struct WinogradBlock {
  /// Positions lie a cache line further apart than they have to: at a power of two they would meet in the
  /// same lines of a cache.
  static constexpr int64_t kGap = 16;

  int64_t positions, tiles;
  int64_t width;  // channels of the input, as whole vectors
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

/// Tiles that are computed together are a whole number of those whose sums registers hold, or a few more
/// where these are all: each block reads the weights.
constexpr int64_t most_tiles_of_block(int64_t unit) { return unit * 5 / 4; }

/// Floats of the transformed weight. It lies behind the one that is packed for sums, which some tiles need.
int64_t winograd_size(int64_t out_channels, int64_t in_channels, Method method, Element element);

/// Writes the transformed weight[out, in, 3, 3], in panels: [position, in, out of the panel]. `packed` is
/// zero.
void pack_winograd(const float* weight, int64_t out_channels, int64_t in_channels, Method method,
                   Element element, int num_threads, float* packed);

/// How long tiles take, in multiplications of sums.
double time_of_tiles(const Convolution& given, int64_t tile);

/// A convolution with tiles.
Work winograd_work(const Convolution& given, int num_threads);

}  // namespace rlopt::kernels
