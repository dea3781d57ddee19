// Convolutions with windows of 3 x 3 by Winograd's minimal filtering (Lavin and Gray 2016, arXiv:1509.09308).
//
// A tile of m x m outputs sees (m + 2) x (m + 2) pixels. These are transformed, multiplied by the transformed
// weight for each position in the tile (over all tiles the product of two matrices), and transformed back:
// 4 multiplications for each output and channel where m is 2, 2.25 where it is 4, for 9 otherwise. Over the
// reals it is the same sum. In float32 its error is about twice that of a sum of the products one by one,
// with the points of interpolation 0, 5/8, -5/8, 3/2, -3/2 and infinity for m = 4 (such points were proposed
// by Barabasz et al. 2020, arXiv:1803.10986; those of the first paper, 0, 1, -1, 2, -2, have four times the
// error). It is relative to what is largest under the tile, not under the window: so a tile is computed as a
// sum where a result is not finite, or one pixel is a thousand times as large as another.
#pragma once

#include "kernels/job.h"

namespace rlopt::kernels {

inline bool has_winograd_tile(int64_t tile) { return tile == 2 || tile == 4; }

constexpr float kWinogradA = 0.625F, kWinogradB = 1.5F;

/// How many times as large as another one a pixel of a tile may be, by their largest channels.
constexpr float kMostWinogradRange = 1024.0F;

/// Tiles of the output.
struct WinogradGrid {
  int64_t tile, images, rows, columns;

  explicit WinogradGrid(const Convolution& given)
      : tile(given.winograd_tile),
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

/// What some tiles that are computed together need of scratch, in floats. Positions lie a cache line further
/// apart than they have to: at a power of two they would meet in the same lines of a cache.
struct WinogradBlock {
  static constexpr int64_t kLine = 16;

  int64_t positions, tiles;
  int64_t width;  // channels, as whole vectors of any instruction set

  WinogradBlock(const Convolution& given, int64_t tiles)
      : positions((given.winograd_tile + 2) * (given.winograd_tile + 2)),
        tiles(tiles),
        width((given.channels + kLine - 1) / kLine * kLine) {}

  int64_t read_stride() const { return tiles * width + kLine; }
  int64_t made_stride(int64_t panel) const { return tiles * panel + kLine; }
  int64_t read_size() const { return positions * read_stride(); }
  int64_t size(int64_t panel) const { return read_size() + positions * made_stride(panel); }
};

/// Floats of the transformed weight, which lies behind the packed one.
int64_t winograd_size(int64_t out_channels, int64_t in_channels, int64_t tile);

/// Writes the transformed weight[out, in, 3, 3], in panels: [position, in, out of the panel].
void pack_winograd(const float* weight, int64_t out_channels, int64_t in_channels, int64_t tile,
                   float* packed);

/// How a convolution with a window of 3 x 3 and stride 1 is computed in the least time: the side of its
/// tiles; 0: as a sum.
int64_t best_winograd_tile(int64_t images, int64_t out_height, int64_t out_width, int64_t out_channels,
                           int64_t in_channels);

}  // namespace rlopt::kernels
