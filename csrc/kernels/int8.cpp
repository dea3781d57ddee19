#include "kernels/int8.h"

#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

#include "kernels/openmp.h"

namespace rlopt::kernels {

namespace {

/// Cost of quantising a number, and of scaling and writing a result, in multiplications of the direct method
/// (half a cycle for a vector of them).
constexpr double kQuantise = 0.6, kScale = 8;

/// The same on the matrix unit: of a step of an output, and of scaling the sums of a tap. Fitted by hand to
/// single-thread times on an Intel Xeon (family 6, model 207), where both units took equally long for about
/// six rows.
constexpr double kStepInUnit = 0.4, kScaleInUnit = 8;

Panels panels_of(int64_t out_channels, Element element) {
  const Kernels& ours = *kernels(element);
  return {out_channels, ours.vector_size, ours.widest_panel};
}

/// The largest quantised weight is 127 in magnitude, so that -w can be represented if w can.
constexpr double kMostWeight = 127;

/// NaN if some are not finite.
double scale_of(const float* from, int64_t count) {
  float most = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (!std::isfinite(from[i])) return std::numeric_limits<double>::quiet_NaN();
    most = std::max(most, std::abs(from[i]));
  }
  return static_cast<double>(most) / kMostWeight;
}

}  // namespace

bool takes_int8(int64_t groups, int64_t channels, Element element) {
  return has_int8(element) && groups == 1 && channels >= kFewChannels;
}

void check_int8(int64_t groups, int64_t channels, Element element) {
  if (!has_int8(element)) throw std::invalid_argument("this processor has no products of 8-bit integers");
  if (!takes_int8(groups, channels, element))
    throw std::invalid_argument("products of 8-bit integers take one group of at least " +
                                std::to_string(kFewChannels) + " channels");
}

int64_t int8_size(const WeightLayout& layout) {
  const Kernels& ours = *kernels(layout.element);
  const int64_t columns = panels_of(layout.out_channels, layout.element).vectors * ours.vector_size,
                steps = Int8Steps(layout.in_channels).count;
  return columns * (2 + layout.num_taps() * (1 + steps));
}

void pack_int8(const float* weight, const float* bias, const WeightLayout& layout, int num_threads,
               float* packed) {
  const Kernels& ours = *kernels(layout.element);
  const Panels panels = panels_of(layout.out_channels, layout.element);
  const int64_t columns = panels.vectors * ours.vector_size, num_taps = layout.num_taps(),
                inputs = layout.in_channels, steps = Int8Steps(inputs).count;
  if (bias != nullptr) std::copy_n(bias, layout.out_channels, packed);
  float* const scales = packed + columns;
  auto* const sums = reinterpret_cast<int32_t*>(scales + columns);
  auto* const bytes = reinterpret_cast<int8_t*>(sums + num_taps * columns);
  for_each_piece(panels.count, num_threads, [&](int64_t panel) {
    const int64_t begin = panels.begin(panel) * ours.vector_size,
                  width = panels.width(panel) * ours.vector_size,
                  end = std::min(begin + width, layout.out_channels);
    int8_t* const to = bytes + begin * num_taps * steps * kInt8Terms;
    for (int64_t out = begin; out < end; ++out) {
      const float* from = weight + out * inputs * num_taps;
      const double scale = scale_of(from, inputs * num_taps);
      scales[out] = static_cast<float>(scale);
      if (!(scale > 0)) continue;  // zeros, or not finite: then the scale alone decides
      for (int64_t in = 0; in < inputs; ++in) {
        for (int64_t tap = 0; tap < num_taps; ++tap, ++from) {
          const auto number = static_cast<int8_t>(std::lrint(static_cast<double>(*from) / scale));
          to[((tap * steps + in / kInt8Terms) * width + out - begin) * kInt8Terms + in % kInt8Terms] = number;
          sums[tap * columns + out] += number;
        }
      }
    }
  });
}

Work int8_work(const Convolution& given, int num_threads) {
  Work work;
  work.given = given;
  const Kernels& ours = *kernels(given.element);
  work.kernel = ours.int8;
  const int64_t num_panels = panels_of(given.out_channels, given.element).count;
  const auto outputs = static_cast<double>(given.images * given.out_height * given.out_width);
  const auto inputs = static_cast<double>(given.images * given.height * given.width * given.channels);
  work.weights = static_cast<double>(given.num_taps() * Int8Steps(given.channels).count * given.out_channels);
  const double quantising = kQuantise * inputs;
  work.time = outputs * (work.weights + kScale * static_cast<double>(given.out_channels)) + quantising;
  if (ours.int8_in_unit != nullptr) {
    const double scaling = kScaleInUnit * static_cast<double>(given.num_taps() * given.out_channels);
    const int64_t tiles = given.images * ((given.out_height * given.out_width + kInt8Tile - 1) / kInt8Tile);
    const auto rows = static_cast<double>(tiles * kInt8Tile);
    const double time = rows * kStepInUnit * work.weights + outputs * scaling + quantising;
    if (time < work.time) work.time = time, work.kernel = ours.int8_in_unit;
  }
  share_out(work, work.time, num_threads);
  const Int8Grid grid(given, num_panels, work.num_threads);
  const int64_t pieces = grid.shares_panels ? num_panels : given.images * grid.units;
  const int64_t most = std::max<int64_t>(pieces / work.num_threads, 1);
  work.parts_of_thread = static_cast<int>(std::min<int64_t>(work.parts_of_thread, most));
  work.scratch_of_thread =
      work.kernel == ours.int8_in_unit ? grid.scratch_size_in_unit(given) : grid.scratch_size(given);
  return work;
}

}  // namespace rlopt::kernels
