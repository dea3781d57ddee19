#include "kernels/winograd.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/openmp.h"

namespace rlopt::kernels {

namespace {

constexpr int kMostInputs = 6, kMostOutputs = 64;  // inputs of a tile along an axis, and outputs of a panel
using Row = std::array<double, 3>;

/// The coefficients of one position along an axis for the three weights. In float64, since it runs only once.
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

template <class Sum>
void combine(const Row& of, const double* x, const double* y, const double* z, int64_t count, Sum* sums) {
  for (int64_t i = 0; i < count; ++i) sums[i] = static_cast<Sum>(of[0] * x[i] + of[1] * y[i] + of[2] * z[i]);
}

/// Cost of transforming a number, in multiplications. Fitted by hand to single-thread times on an Intel Xeon
/// with AVX-512, as measured by `python -m baselines.kernels --what methods --threads 1`; with AVX2 it is
/// less, and so is kReadOfWeight.
constexpr double kTransform = 14;

/// Tiles, or panels, of a part of a thread's share: each part transforms the input of its tiles.
constexpr int64_t kTilesOfPart = 28, kPanelsOfPart = 2;

/// Maximum floats of scratch for all threads, unless the minimum number of tiles needs more: malloc requests
/// new pages at every call for 32 MB.
constexpr int64_t kMostScratch = 4 << 20, kLeastTilesOfBlock = 8;

}  // namespace

bool can_have_tiles(const Convolution& given) {
  return given.kernel_height == 3 && given.kernel_width == 3 && given.groups == 1 &&
         std::max({given.stride_y, given.stride_x, given.dilation_y, given.dilation_x}) == 1 &&
         given.channels >= kFewChannels;
}

double time_of_tiles(const Convolution& given, int64_t tile) {
  const WinogradGrid grid(given, tile);
  const auto count = static_cast<double>(grid.count());
  const double products = (count + kReadOfWeight) * static_cast<double>(given.channels * given.out_channels);
  const double transforms = kTransform * count * static_cast<double>(given.channels + given.out_channels);
  return static_cast<double>(grid.positions()) * (products + transforms);
}

Work winograd_work(const Convolution& given, int num_threads) {
  const Kernels& ours = *kernels(given.element);
  const WinogradGrid grid(given);
  const Panels panels(given.out_channels, ours.vector_size, ours.widest_panel);
  Work work;
  work.given = given;
  work.kernel = ours.winograd;
  work.weights = static_cast<double>(grid.positions() * given.channels * given.out_channels);
  work.time = time_of_tiles(given, static_cast<int64_t>(given.method)) - kReadOfWeight * work.weights;
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

int64_t winograd_size(int64_t out_channels, int64_t in_channels, Method method, Element element) {
  if (!has_tiles(method)) return 0;
  const auto tile = static_cast<int64_t>(method);
  const Kernels& ours = *kernels(element);
  const Panels panels(out_channels, ours.vector_size, ours.widest_panel);
  return winograd_head(in_channels) +
         (tile + 2) * (tile + 2) * panels.vectors * ours.vector_size * in_channels;
}

namespace {

/// The largest and the mean magnitude of each channel of an output, and its lightest tap relative to the mean
/// tap. False if the output reads nothing.
bool describe(const float* weight, int64_t channels, std::vector<float>& largest, std::vector<float>& mean,
              float& lightest) {
  std::array<double, 9> taps{};
  for (int64_t in = 0; in < channels; ++in, weight += 9) {
    float most = 0, sum = 0;
    for (size_t tap = 0; tap < 9; ++tap) {
      const float size = std::abs(weight[tap]);
      most = std::max(most, size);
      sum += size / 9;
      taps[tap] += size;
    }
    largest[static_cast<size_t>(in)] = most;
    mean[static_cast<size_t>(in)] = sum;
  }
  const double all = std::accumulate(taps.begin(), taps.end(), 0.0);
  if (all == 0) return false;
  lightest = static_cast<float>(*std::min_element(taps.begin(), taps.end()) * 9 / all);
  return true;
}

/// The median of those that are not zero.
float median(std::vector<float> values) {
  values.erase(std::remove(values.begin(), values.end(), 0.0F), values.end());
  const auto middle = values.begin() + static_cast<int64_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Writes W_c and w_c of all channels (see winograd.h). Returns whether an image of ones would be even.
bool write_sizes(const float* weight, int64_t out_channels, int64_t in_channels, float* most, float* least) {
  const auto channels = static_cast<size_t>(in_channels);
  std::vector<float> largest(channels), mean(channels);
  std::vector<std::vector<float>> shares(channels);  // for each channel, by output
  for (int64_t out = 0; out < out_channels; ++out) {
    float lightest = 0;
    if (!describe(weight + out * in_channels * 9, in_channels, largest, mean, lightest)) continue;
    const float scale = median(mean);
    for (size_t in = 0; in < channels; ++in) {
      most[in] = std::max(most[in], largest[in] / scale);
      shares[in].push_back(lightest * std::min(mean[in] / scale, 1.0F));
    }
  }
  double all = 0, one = 0, window = 0;
  for (size_t in = 0; in < channels; ++in) {
    if (shares[in].empty()) return false;  // all weights are zero
    const auto tenth = shares[in].begin() + static_cast<int64_t>(shares[in].size() / 10);
    std::nth_element(shares[in].begin(), tenth, shares[in].end());
    least[in] = *tenth;
    all += most[in];
    one = std::max<double>(one, most[in]);
    window += 9 * least[in];
  }
  return all <= kMostOfAll * window && one * std::sqrt(in_channels) <= kMostOfOne * window;
}

/// An unpacked weight, and its transform.
struct Transform {
  const float* weight;
  int64_t out_channels, in_channels, inputs;
  const std::array<Row, kMostInputs>& rows;

  /// Some outputs, which form a panel of this width.
  void write(int64_t begin, int64_t outputs, int64_t width, float* to) const {
    // All outputs of a panel at a time, so that the compiler vectorises over them.
    std::array<std::array<double, kMostOutputs>, 9> windows{};
    std::array<std::array<std::array<double, kMostOutputs>, kMostInputs>, 3> columns{};
    for (int64_t in = 0; in < in_channels; ++in) {
      for (int64_t out = 0; out < outputs; ++out)
        for (size_t tap = 0; tap < 9; ++tap)
          windows[tap][static_cast<size_t>(out)] =
              weight[((begin + out) * in_channels + in) * 9 + static_cast<int64_t>(tap)];
      for (size_t x = 0; x < 3; ++x)
        for (size_t i = 0; i < static_cast<size_t>(inputs); ++i)
          combine(rows[i], windows[x].data(), windows[3 + x].data(), windows[6 + x].data(), outputs,
                  columns[x][i].data());
      float* row = to + in * width;
      for (size_t i = 0; i < static_cast<size_t>(inputs); ++i)
        for (size_t j = 0; j < static_cast<size_t>(inputs); ++j, row += in_channels * width)
          combine(rows[j], columns[0][i].data(), columns[1][i].data(), columns[2][i].data(), outputs, row);
    }
  }
};

}  // namespace

void pack_winograd(const float* weight, int64_t out_channels, int64_t in_channels, Method method,
                   Element element, int num_threads, float* packed) {
  const auto tile = static_cast<int64_t>(method);
  const Kernels& ours = *kernels(element);
  const Panels panels(out_channels, ours.vector_size, ours.widest_panel);
  const std::array<Row, kMostInputs> rows = weight_transform(tile);
  const float* const end = weight + out_channels * in_channels * 9;
  const auto is_exact = [](float each) { return each * 256.0F == std::nearbyint(each * 256.0F); };
  float* const sizes = packed + kWinogradFlags;
  if (std::all_of(weight, end, is_exact) || !is_finite(weight, end - weight) ||
      !write_sizes(weight, out_channels, in_channels, sizes, sizes + winograd_channels(in_channels))) {
    packed[0] = 1.0F;
    return;
  }
  const Transform transform{weight, out_channels, in_channels, tile + 2, rows};
  float* const to = packed + winograd_head(in_channels);
  for_each_piece(panels.count, num_threads, [&](int64_t panel) {
    const int64_t width = panels.width(panel) * ours.vector_size,
                  begin = panels.begin(panel) * ours.vector_size;
    transform.write(begin, std::min(width, out_channels - begin), width,
                    to + begin * transform.inputs * transform.inputs * in_channels);
  });
}

}  // namespace rlopt::kernels
