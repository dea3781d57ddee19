#include "kernels/winograd.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

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

/// Floats for all threads, where so few tiles are not more: malloc asks for new pages at every call for 32
/// MB.
constexpr int64_t kMostScratch = 4 << 20, kLeastTilesOfBlock = 8;

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
  const int64_t all = grid.count() * (are_tiles ? 1 : panels.count), count = work.num_threads;
  const int64_t of_thread = std::min((all + count - 1) / count, grid.count());
  const int64_t panel = ours.widest_panel * ours.vector_size;
  const int64_t fitting = kMostScratch / (count * WinogradBlock(given, 1, panel).size());
  const int64_t tiles = of_thread <= most_tiles_of_block(ours.unit) ? of_thread : ours.unit;
  work.tiles_of_block = std::min(tiles, std::max(fitting, kLeastTilesOfBlock));
  work.scratch_of_thread = WinogradBlock(given, work.tiles_of_block, panel).size();
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
  const auto is_exact = [](float each) { return each * 256.0F == std::nearbyint(each * 256.0F); };
  if (std::all_of(weight, end, is_exact) || !is_finite(weight, end - weight)) {
    packed[0] = 1.0F;
    return;
  }
  packed += kWinogradHead;
  const int64_t widest = ours.widest_panel * ours.vector_size;
  std::vector<float> rows(static_cast<size_t>(inputs * inputs * widest));  // of one input, [position, out]
  for (int64_t panel = 0; panel < panels.count; ++panel) {
    const int64_t width = panels.width(panel) * ours.vector_size,
                  begin = panels.begin(panel) * ours.vector_size;
    const int64_t outputs = std::min(width, out_channels - begin);
    float* const to = packed + begin * inputs * inputs * in_channels;
    for (int64_t in = 0; in < in_channels; ++in) {
      for (int64_t out = 0; out < outputs; ++out) {
        const float* const window = weight + ((begin + out) * in_channels + in) * 9;
        double columns[3][kMostInputs];
        for (int64_t x = 0; x < 3; ++x)
          for (int64_t i = 0; i < inputs; ++i) {
            const Row& of = transform[static_cast<size_t>(i)];
            columns[x][i] = of[0] * window[x] + of[1] * window[3 + x] + of[2] * window[6 + x];
          }
        for (int64_t i = 0; i < inputs; ++i)
          for (int64_t j = 0; j < inputs; ++j) {
            const Row& of = transform[static_cast<size_t>(j)];
            const double sum = of[0] * columns[0][i] + of[1] * columns[1][i] + of[2] * columns[2][i];
            rows[static_cast<size_t>((i * inputs + j) * widest + out)] = static_cast<float>(sum);
          }
      }
      for (int64_t position = 0; position < inputs * inputs; ++position)
        std::copy_n(rows.begin() + position * widest, outputs, to + (position * in_channels + in) * width);
    }
  }
}

}  // namespace rlopt::kernels
