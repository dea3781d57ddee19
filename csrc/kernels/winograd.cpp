#include "kernels/winograd.h"

#include <array>

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

/// Multiplications that take as long as transforming a number, and as reading one of the weight from memory
/// (by `python -m baselines.cpu_kernels` on an Intel Xeon with AVX-512, one thread).
constexpr double kTransform = 14, kRead = 16;

/// What is within so much of the other is not faster: another processor has another memory.
constexpr double kClearly = 0.95;

/// In multiplications.
double time_of(double positions, double rows, double transformed, double out_channels, double in_channels) {
  const double weight = out_channels * in_channels;
  return positions *
         (rows * weight + kTransform * transformed * (out_channels + in_channels) + kRead * weight);
}

}  // namespace

int64_t best_winograd_tile(int64_t images, int64_t out_height, int64_t out_width, int64_t out_channels,
                           int64_t in_channels) {
  if (kernels() == nullptr || in_channels < kFewChannels) return 0;
  const auto outputs = static_cast<double>(out_channels), inputs = static_cast<double>(in_channels);
  int64_t best = 0;
  double least = time_of(9, static_cast<double>(images * out_height * out_width), 0, outputs, inputs);
  for (const int64_t tile : {2, 4}) {
    const auto count =
        static_cast<double>(images * ((out_height + tile - 1) / tile) * ((out_width + tile - 1) / tile));
    const double time = time_of(static_cast<double>((tile + 2) * (tile + 2)), count, count, outputs, inputs);
    if (time >= kClearly * least) continue;
    least = time;
    best = tile;
  }
  return best;
}

int64_t winograd_size(int64_t out_channels, int64_t in_channels, int64_t tile) {
  if (tile == 0) return 0;
  const Kernels& ours = *kernels();
  const Panels panels(out_channels, ours.vector_size, ours.widest_panel);
  return (tile + 2) * (tile + 2) * panels.vectors * ours.vector_size * in_channels;
}

void pack_winograd(const float* weight, int64_t out_channels, int64_t in_channels, int64_t tile,
                   float* packed) {
  const Kernels& ours = *kernels();
  const Panels panels(out_channels, ours.vector_size, ours.widest_panel);
  const std::array<Row, kMostInputs> transform = weight_transform(tile);
  const int64_t inputs = tile + 2;
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
