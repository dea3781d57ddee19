// Convolutions with windows of 3 x 3 by Winograd's minimal filtering (Lavin and Gray 2016, arXiv:1509.09308).
//
// An output tile of m x m pixels sees (m + 2) x (m + 2) of the input. These are transformed, multiplied by
// the transformed weight for each position (over all tiles the product of two matrices), and transformed
// back: for each output pixel and pair of channels 4 multiplications where m is 2, and 2.25 where it is 4, in
// place of 9.
//
// Over the reals it is the same sum. In float32 the error is at most about twice that of a sum of the
// products one by one; for m = 4 with the points of interpolation 0, 5/8, -5/8, 3/2, -3/2 and infinity, which
// are oneDNN's. But it is relative to what is largest under the tile, where that of a sum is relative to what
// is largest under the window. So a tile is computed as sums where one of them is not finite, or where a
// window sees only numbers, in all channels, that are smaller by more than kMostWinogradRange. Where it sees
// zeros only, its sum is zero.
#pragma once

#include "kernels/job.h"

namespace rlopt::kernels {

constexpr float kWinogradA = 0.625F, kWinogradB = 1.5F;

/// So many times as large as under a window may a number be under its tile: as many digits may be lost, two.
constexpr float kMostWinogradRange = 128.0F;

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

/// What some tiles that are computed together need of scratch, in floats: transformed inputs
/// [position, tile, channel], and products [position, tile, channel of a panel].
struct WinogradBlock {
  static constexpr int64_t kWidestVector = 16;
  /// Positions lie a cache line further apart than they have to: at a power of two they would meet in the
  /// same lines of a cache.
  static constexpr int64_t kGap = 16;

  int64_t positions, tiles;
  int64_t width;  // channels of the input, as whole vectors
  int64_t panel;  // channels of the widest panel

  WinogradBlock(const Convolution& given, int64_t tiles, int64_t panel)
      : positions(WinogradGrid(given).positions()),
        tiles(tiles),
        width((given.channels + kWidestVector - 1) / kWidestVector * kWidestVector),
        panel(panel) {}

  int64_t input_stride() const { return tiles * width + kGap; }
  int64_t product_stride() const { return tiles * panel + kGap; }
  int64_t inputs() const { return positions * input_stride(); }
  int64_t size() const { return inputs() + positions * product_stride(); }
};

/// Tiles that are computed together are a whole number of those whose sums registers hold, or a few more
/// where these are all: each block reads the weights.
constexpr int64_t most_tiles_of_block(int64_t unit) { return unit * 5 / 4; }

/// A transformed weight begins behind so many floats, of which the first says that there are no tiles: a
/// weight that is not finite spoils them, and one of integers (or 256ths) gives exact sums, where tiles
/// round.
constexpr int64_t kWinogradHead = 16;

/// Floats of the transformed weight. It lies behind the one that is packed for sums, which some tiles need.
int64_t winograd_size(int64_t out_channels, int64_t in_channels, Method method, Element element);

/// Writes the transformed weight[out, in, 3, 3], in panels: [position, in, out of the panel]. `packed` is
/// zero.
void pack_winograd(const float* weight, int64_t out_channels, int64_t in_channels, Method method,
                   Element element, float* packed);

/// How long tiles take, in multiplications of sums.
double time_of_tiles(const Convolution& given, int64_t tile);

/// A convolution with tiles.
Work winograd_work(const Convolution& given, int num_threads);

}  // namespace rlopt::kernels
