#include "kernels/bands.h"

#include <algorithm>

#include "kernels/arena.h"

namespace rlopt::kernels {

namespace {

constexpr int64_t kLine = kLineOfArena * sizeof(float);  // bytes

/// Minimum bytes of the intermediate. With fewer there was no gain on two threads of an AMD EPYC (Zen 4, 1
/// MiB of L2 per core).
constexpr int64_t kLeast = 1 << 20;

/// Maximum bytes of one row tile of it. Once tiles are at most kEnoughOfBand, smaller ones are not tried.
constexpr int64_t kMostOfBand = 1 << 19, kEnoughOfBand = 1 << 18;

/// Maximum cost of computing overlapping rows twice, in multiplications per float of the intermediate: half
/// of what writing and reading it in L3 costs (kWaitOfThird of phases.cpp, twice).
constexpr double kMostTwice = 4;

struct Rows {
  int64_t first, last;
};

Rows share_of_rows(int64_t rows, int64_t band, int64_t count) {
  return {rows * band / count, rows * (band + 1) / count};
}

/// The rows of the second input that some rows of its result see. The first may lie above the image, and all
/// of them outside: then the first call computes nothing and the second reads nothing.
Rows seen_by(const Convolution& behind, Rows out) {
  const int64_t reach = (behind.kernel_height - 1) * behind.dilation_y;
  return {out.first * behind.stride_y - behind.pad_y,
          (out.last - 1) * behind.stride_y - behind.pad_y + reach + 1};
}

Rows inside(const Convolution& behind, Rows rows) {
  return {std::clamp<int64_t>(rows.first, 0, behind.height),
          std::clamp<int64_t>(rows.last, 0, behind.height)};
}

bool is_pixel_by_pixel(const Convolution& of) {
  return of.images == 1 && of.num_taps() == 1 && of.groups == 1 && of.pad_y == 0 && of.pad_x == 0 &&
         of.height == of.out_height && of.width == of.out_width && of.stride_y == 1 && of.stride_x == 1 &&
         of.method == Method::kSums && of.row_stride == of.width * of.pixel_stride;
}

bool reads_all_of(const Convolution& first, const Convolution& behind) {
  return behind.images == 1 && is_by_lanes(behind) && behind.num_taps() > 1 &&
         behind.channels == first.out_channels && behind.height == first.out_height &&
         behind.width == first.out_width && behind.channel_stride == 1 &&
         behind.pixel_stride == first.out_pixel_stride && first.out_pixel_stride == first.out_channels &&
         behind.row_stride == behind.width * behind.pixel_stride;
}

}  // namespace

Bands bands_of(const Convolution& first, const Convolution& behind, int num_threads, int64_t wanted) {
  if (wanted == 0 || !is_pixel_by_pixel(first) || !reads_all_of(first, behind)) return {};
  const bool is_chosen = wanted < 0;
  const int64_t row = behind.row_stride * bytes_of(behind.in_element);
  if (is_chosen && row * behind.height < kLeast) return {};
  Bands found;
  // The same number of tiles for each thread, at least two, and tiles as small as allowed.
  const int64_t least = is_chosen ? 2 * num_threads : wanted;
  for (int64_t count = least; count <= behind.out_height; count += num_threads) {
    int64_t most = 0, all = 0;
    for (int64_t band = 0; band < count; ++band) {
      const Rows rows = inside(behind, seen_by(behind, share_of_rows(behind.out_height, band, count)));
      most = std::max(most, rows.last - rows.first);
      all += rows.last - rows.first;
    }
    const Bands tiles{count, (most * row + kLine - 1) / kLine * kLineOfArena};
    if (!is_chosen) return tiles;
    const auto twice = static_cast<double>(all - behind.height) / static_cast<double>(behind.height);
    if (twice * static_cast<double>(first.channels) > kMostTwice) break;
    if (most * row <= kMostOfBand) found = tiles;
    if (most * row <= kEnoughOfBand) break;
  }
  return found;
}

Offsets cut(Convolution& first, Convolution& behind, int64_t band, int64_t count) {
  const Rows out = share_of_rows(behind.out_height, band, count), seen = seen_by(behind, out);
  const Rows rows = inside(behind, seen);
  first.width = first.out_width = (rows.last - rows.first) * behind.width;
  behind.height = rows.last - rows.first;
  behind.out_height = out.last - out.first;
  behind.pad_y = rows.first - seen.first;  // negative if all rows lie below the image: none is read
  return {rows.first * behind.width * first.pixel_stride * bytes_of(first.in_element),
          out.first * behind.out_width * behind.out_pixel_stride * bytes_of(behind.out_element)};
}

}  // namespace rlopt::kernels
