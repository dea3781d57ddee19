#include "kernels/matrix_unit.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/openmp.h"

namespace rlopt::kernels {

namespace {

/// Cost of a method, in multiplications of the direct method, which for bfloat16 multiplies pairs: of one
/// multiplication of the unit, of splitting a number, of writing a result, and of reading one number of a
/// weight from memory. Fitted by hand to single-thread times on an Intel Xeon (family 6, model 207), as
/// measured by `python -m baselines.kernels --what methods --threads 1`. For three parts the first is 0.5
/// there, and 1.2 when the sibling hyperthread is busy with something else.
struct Costs {
  double multiply, split, write, read;
};
constexpr Costs kThreeParts{0.6, 28, 30, 1.5 * kReadOfWeight}, kTwoParts{0.3, 20, 30, kReadOfWeight},
    kOnePart{0.05, 0.4, 4, 0.5 * kReadOfWeight};

constexpr const Costs& costs_of(int64_t parts) {
  return parts == 3 ? kThreeParts : parts == 2 ? kTwoParts : kOnePart;
}

/// Rows and columns of blocks in a part of a thread's share: few columns if the left operand is split once.
constexpr int64_t kRowsOfPart = 2, kColumnsOfPart = 12, kFewColumnsOfPart = 2;

constexpr int64_t kPairs = kSplitStep / 2;

uint32_t bits_of(float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

float number_of(uint32_t bits) {
  float value = 0;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

/// The power of two closest to the largest magnitude, and at most one: next to a number as large as a float
/// can be, the others would be lost. One, too, if some are not finite: then no result is finite anyway.
float power_of(const float* from, int64_t count) {
  constexpr int kLeast = -120;
  float most = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (!std::isfinite(from[i])) return 1.0F;
    most = std::max(most, std::abs(from[i]));
  }
  return most == 0.0F ? 1.0F : std::ldexp(1.0F, std::clamp(std::ilogb(most), kLeast, 0));
}

/// Numbers as they are: [pair].
void round_numbers(const float* from, int64_t stride, int64_t count, uint32_t (&words)[1][kPairs]) {
  std::fill_n(words[0], kPairs, 0U);
  for (int64_t i = 0; i < count; ++i)
    words[0][i / 2] |= static_cast<uint32_t>(rounded(from[i * stride]).bits) << (i % 2 * 16);
}

/// Splits up to kSplitStep numbers, times the inverse of a power of two, into words: [part, pair]. The first
/// half of the numbers are the first of each pair: see `split` in matrix_unit.inc.
template <int kParts>
void split_numbers(const float* from, int64_t stride, int64_t count, double inverse,
                   uint32_t (&words)[kParts][kPairs]) {
  for (auto& part : words) std::fill_n(part, kPairs, 0U);
  for (int64_t i = 0; i < count; ++i) {
    const int shift = i < kPairs ? 0 : 16;
    auto rest = static_cast<float>(static_cast<double>(from[i * stride]) * inverse);
    if (!std::isfinite(rest)) {  // all in one part, whose first bits tell infinity from NaN
      words[0][i % kPairs] |= (std::isnan(rest) ? 0x7fc0U : bits_of(rest) >> 16) << shift;
      continue;
    }
    for (auto& part : words) {
      uint32_t bits = (bits_of(rest) + 0x8000U) >> 16;                        // to the nearest
      if (!std::isfinite(number_of(bits << 16))) bits = bits_of(rest) >> 16;  // towards zero
      part[i % kPairs] |= bits << shift;
      rest -= number_of(bits << 16);
    }
  }
}

}  // namespace

bool takes_unit(Method method, int64_t groups, int64_t channels, Element element) {
  const Element multiplied = method == Method::kBf16 ? Element::kBfloat16 : Element::kFloat32;
  return kernels(element) != nullptr && kernels(element)->in_unit != nullptr && element == multiplied &&
         groups == 1 && channels >= kFewChannels;
}

void check_unit(Method method, int64_t groups, int64_t channels, Element element) {
  if (!has_matrix_unit()) throw std::invalid_argument("this processor has no matrix unit");
  if (!takes_unit(method, groups, channels, element))
    throw std::invalid_argument(
        "the matrix unit takes numbers of the method's type in one group of at least " +
        std::to_string(kFewChannels) + " channels");
}

int64_t unit_size(const WeightLayout& layout) {
  const int64_t columns = (layout.out_channels + kSplitBlock - 1) / kSplitBlock,
                steps = layout.num_taps() * ((layout.in_channels + kSplitStep - 1) / kSplitStep);
  return columns * (2 * kSplitBlock + steps * parts_of(layout.method) * kPartWords / 2);
}

namespace {

template <int kParts>
void pack_parts(const float* weight, const float* bias, const WeightLayout& layout, int num_threads,
                float* packed) {
  const int64_t columns = (layout.out_channels + kSplitBlock - 1) / kSplitBlock,
                steps_of_tap = (layout.in_channels + kSplitStep - 1) / kSplitStep,
                in_channels = layout.in_channels, num_taps = layout.num_taps();
  if (bias != nullptr) std::memcpy(packed, bias, static_cast<size_t>(layout.out_channels) * sizeof(float));
  float* const powers = packed + columns * kSplitBlock;
  auto* const words = reinterpret_cast<uint32_t*>(powers + columns * kSplitBlock);
  constexpr int64_t kHalf = 16 * kPairs, kPart = 2 * kHalf;  // 32-bit words
  const auto pack_output = [&](int64_t out) {
    const float* const row = weight + out * in_channels * num_taps;
    uint32_t* to = words + out / kSplitBlock * num_taps * steps_of_tap * kParts * kPart +
                   out % kSplitBlock / 16 * kHalf + out % 16;
    powers[out] = kParts == 1 ? 1.0F : power_of(row, in_channels * num_taps);
    const double inverse = 1.0 / static_cast<double>(powers[out]);
    for (int64_t tap = 0; tap < num_taps; ++tap) {
      for (int64_t in = 0; in < in_channels; in += kSplitStep, to += kParts * kPart) {
        uint32_t parts[kParts][kPairs];
        const float* const from = row + in * num_taps + tap;
        const int64_t count = std::min(in_channels - in, kSplitStep);
        if constexpr (kParts == 1)
          round_numbers(from, num_taps, count, parts);
        else
          split_numbers(from, num_taps, count, inverse, parts);
        for (int64_t part = 0; part < kParts; ++part)
          for (int64_t pair = 0; pair < kPairs; ++pair) to[part * kPart + pair * 16] = parts[part][pair];
      }
    }
  };
  for_each_piece(columns, num_threads, [&](int64_t column) {  // no two pieces share a cache line
    const int64_t first = column * kSplitBlock;
    for (int64_t out = first; out < std::min(first + kSplitBlock, layout.out_channels); ++out)
      pack_output(out);
  });
}

}  // namespace

void pack_for_unit(const float* weight, const float* bias, const WeightLayout& layout, int num_threads,
                   float* packed) {
  const int64_t parts = parts_of(layout.method);
  const auto pack = parts == 3 ? pack_parts<3> : parts == 2 ? pack_parts<2> : pack_parts<1>;
  pack(weight, bias, layout, num_threads, packed);
}

namespace {

/// How often each number of the left operand is split, summed over all threads.
int64_t num_splits(const UnitGrid& grid, int num_threads) {
  if (grid.shares_rows) return (grid.columns + grid.num_columns() - 1) / grid.num_columns();
  const auto threads = std::min<int64_t>(num_threads, grid.columns);
  return grid.is_split_once ? threads : std::max(threads, grid.columns / kColumnsOfPart);
}

/// Load imbalance: how much longer the threads take than with an even split of all blocks.
double unevenness(const UnitGrid& grid, int num_threads) {
  const int64_t blocks = grid.shares_rows ? grid.rows : grid.columns;
  const auto threads = std::min<int64_t>(num_threads, blocks);
  const int64_t most = (blocks + threads - 1) / threads;
  return static_cast<double>(most * threads) / static_cast<double>(blocks);
}

}  // namespace

double time_in_unit(const Convolution& given, int num_threads) {
  const UnitGrid grid(given, num_threads);
  const Costs& costs = costs_of(grid.parts);
  constexpr int64_t kHalf = kSplitBlock / 2;
  const auto pixels = static_cast<double>((grid.pixels + kHalf - 1) / kHalf * kHalf);
  const auto outputs = static_cast<double>(grid.columns * kSplitBlock);
  const auto terms = static_cast<double>(grid.steps * kSplitStep);
  const double splits = costs.split * static_cast<double>(num_splits(grid, num_threads));
  const double time = terms * (outputs * (costs.multiply * pixels + costs.read) + splits * pixels) +
                      costs.write * outputs * pixels;
  return time * unevenness(grid, num_threads);
}

Work unit_work(const Convolution& given, int num_threads) {
  Work work;
  work.given = given;
  work.kernel = kernels(given.element)->in_unit;
  work.time = time_in_unit(given, 1);
  share_out(work, time_in_unit(given, num_threads), num_threads);
  const UnitGrid grid(given, work.num_threads);
  const int64_t columns = grid.is_split_once ? kFewColumnsOfPart : kColumnsOfPart;
  const int64_t pieces = grid.shares_rows ? grid.rows / kRowsOfPart : grid.columns / columns;
  const int64_t most = std::max<int64_t>(pieces / work.num_threads, 1);
  work.parts_of_thread = static_cast<int>(std::min<int64_t>(work.parts_of_thread, most));
  work.scratch_of_thread = grid.scratch_size();
  return work;
}

}  // namespace rlopt::kernels
