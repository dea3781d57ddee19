#include "kernels/winograd.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace rlopt::kernels {

namespace {

constexpr int kMostInputs = 6;
using Row = std::array<double, 3>;

/// What a position along an axis takes of the three weights. In float64, as it is done once.
std::array<Row, kMostInputs> weight_transform(int64_t tile) {
  if (tile == 2) return {{{1, 0, 0}, {0.5, 0.5, 0.5}, {0.5, -0.5, 0.5}, {0, 0, 1}}};
  const double a = kWinogradA, b = kWinogradB, a2 = a * a, b2 = b * b;
  const double near = 1 / (2 * a2 * (a2 - b2)), far = 1 / (2 * b2 * (b2 - a2));
  return {{{1 / (a2 * b2), 0, 0},
           {near, near * a, near * a2},
           {near, near * -a, near * a2},
           {far, far * b, far * b2},
           {far, far * -b, far * b2},
           {0, 0, 1}}};
}

/// Multiplications that take as long as transforming a number, and as reading one of a weight from memory. By
/// `python -m baselines.cpu_kernels --winograd --threads 1` on an Intel Xeon with AVX-512; with AVX2 both are
/// less.
constexpr double kTransform = 14, kRead = 16;

/// A way is taken where it is so much faster than the one with less memory: processors differ.
constexpr double kClearly = 0.95;

/// In multiplications.
double time_of_sums(const Convolution& given) {
  const auto pixels = static_cast<double>(given.images * given.out_height * given.out_width);
  return (pixels + kRead) * static_cast<double>(given.num_taps() * given.channels * given.out_channels);
}

double time_of_tiles(const Convolution& given, int64_t tile) {
  const WinogradGrid grid(given, tile);
  const auto count = static_cast<double>(grid.count());
  const double products = (count + kRead) * static_cast<double>(given.channels * given.out_channels);
  const double transforms = kTransform * count * static_cast<double>(given.channels + given.out_channels);
  return static_cast<double>(grid.positions()) * (products + transforms);
}

/// Parts of a thread's share have so many tiles, or panels: for each part what its tiles see is transformed.
constexpr int64_t kTilesOfPart = 28, kPanelsOfPart = 2;

}  // namespace

bool can_have_tiles(const Convolution& given) {
  return given.kernel_height == 3 && given.kernel_width == 3 && given.groups == 1 &&
         std::max({given.stride_y, given.stride_x, given.dilation_y, given.dilation_x}) == 1 &&
         given.channels >= kFewChannels;
}

int64_t best_winograd_tile(const Convolution& given) {
  if (kernels() == nullptr || !can_have_tiles(given)) return 0;
  int64_t best = 0;
  double least = time_of_sums(given);
  for (const int64_t tile : {2, 4}) {
    const double time = time_of_tiles(given, tile);
    if (time >= kClearly * least) continue;
    least = time;
    best = tile;
  }
  return best;
}

Work winograd_work(const Convolution& given, int num_threads) {
  const Kernels& ours = *kernels();
  const WinogradGrid grid(given);
  const Panels panels(given.out_channels, ours.vector_size, ours.widest_panel);
  Work work;
  work.given = given;
  work.kernel = ours.winograd;
  const double multiplications = static_cast<double>(grid.count() * grid.positions()) *
                                 static_cast<double>(given.channels * given.out_channels);
  share_out(work, multiplications, num_threads);
  const bool are_tiles = grid.shares_tiles(given.out_channels);
  const int64_t pieces = are_tiles ? grid.count() / kTilesOfPart : panels.count / kPanelsOfPart;
  const int64_t most = std::max<int64_t>(pieces / work.num_threads, 1);
  work.parts_of_thread = static_cast<int>(std::min<int64_t>(work.parts_of_thread, most));
  // Each block reads the weights. Where all tiles of a thread are a few more than a block, they are one.
  const int64_t all = grid.count() * (are_tiles ? 1 : panels.count), count = work.num_threads;
  const int64_t of_thread = std::min((all + count - 1) / count, grid.count());
  work.tiles_of_block = of_thread <= ours.unit * 5 / 4 ? of_thread : ours.unit;
  work.scratch_of_thread =
      WinogradBlock(given, work.tiles_of_block, ours.widest_panel * ours.vector_size).size();
  return work;
}

int64_t winograd_size(int64_t out_channels, int64_t in_channels, int64_t tile) {
  if (tile == 0) return 0;
  const Kernels& ours = *kernels();
  const Panels panels(out_channels, ours.vector_size, ours.widest_panel);
  return kWinogradHead + (tile + 2) * (tile + 2) * panels.vectors * ours.vector_size * in_channels;
}

void pack_winograd(const float* weight, int64_t out_channels, int64_t in_channels, int64_t tile,
                   float* packed) {
  const Kernels& ours = *kernels();
  const Panels panels(out_channels, ours.vector_size, ours.widest_panel);
  const std::array<Row, kMostInputs> transform = weight_transform(tile);
  const int64_t inputs = tile + 2;
  const float* const end = weight + out_channels * in_channels * 9;
  if (std::all_of(weight, end, [](float each) { return each == std::nearbyint(each); })) {
    packed[0] = 1.0F;
    return;
  }
  packed += kWinogradHead;
  for (int64_t panel = 0; panel < panels.count; ++panel) {
    const int64_t width = panels.width(panel) * ours.vector_size,
                  begin = panels.begin(panel) * ours.vector_size;
    float* const to = packed + begin * inputs * inputs * in_channels;
    for (int64_t out = begin; out < std::min(begin + width, out_channels); ++out) {
      for (int64_t in = 0; in < in_channels; ++in) {
        const float* const window = weight + (out * in_channels + in) * 9;
        double columns[3][kMostInputs];
        for (int64_t x = 0; x < 3; ++x)
          for (int64_t i = 0; i < inputs; ++i) {
            const Row& of = transform[static_cast<size_t>(i)];
            columns[x][i] = of[0] * window[x] + of[1] * window[3 + x] + of[2] * window[6 + x];
          }
        float* const first = to + in * width + out - begin;
        for (int64_t i = 0; i < inputs; ++i)
          for (int64_t j = 0; j < inputs; ++j) {
            const Row& of = transform[static_cast<size_t>(j)];
            const double sum = of[0] * columns[0][i] + of[1] * columns[1][i] + of[2] * columns[2][i];
            first[(i * inputs + j) * in_channels * width] = static_cast<float>(sum);
          }
      }
    }
  }
}

}  // namespace rlopt::kernels
