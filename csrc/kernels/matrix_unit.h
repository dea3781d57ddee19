// Dense convolutions and products on the processor's matrix unit (Intel's AMX), which multiplies bfloat16
// numbers and accumulates in float32.
//
// bfloat16 numbers are multiplied as they are. A float32 is the sum of three bfloat16 numbers: a significand
// of 24 bits is three times 8. Of the nine products of the parts of two numbers the six largest are summed;
// each of the others is less than 2^-25 of the whole, and so less than the rounding of float32 (Henry, Tang
// and Heinecke 2019, arXiv:1904.06376; the scheme is known as bf16x3). So the error is that of a float32 sum.
// A matrix unit does sixteen times the multiplications of the vector units, and this method needs six of them
// per product. With two parts (bf16x2) three products are left, and an error of about 2^-17 of each.
//
// The unit flushes magnitudes below 2^-126 to zero. So if all float32 weights of an output are smaller than
// one, they are multiplied by a power of two that brings the largest close to one, and rows of the left
// operand whose largest number is too small or too large are computed directly in float32. So are rows of a
// block with a result that is not finite: only the first part of an infinity is meaningful.
#pragma once

#include "kernels/job.h"

namespace rlopt::kernels {

/// Rows and columns of a block of results: two tiles of the unit in each direction.
constexpr int64_t kSplitBlock = 32;

/// Terms of a sum that one instruction multiplies.
constexpr int64_t kSplitStep = 32;

/// Parts that a method splits a number into; 0 if it does not use the unit.
constexpr int64_t parts_of(Method method) {
  switch (method) {
    case Method::kBf16x3:
      return 3;
    case Method::kBf16x2:
      return 2;
    case Method::kBf16:
      return 1;
    default:
      return 0;
  }
}

/// 16-bit words of one part of an operand that one step reads for one block of results.
constexpr int64_t kPartWords = kSplitBlock * kSplitStep;

/// Bounds for the largest number of a row, if it is not zero. Above the lower bound, a product that the unit
/// flushes to zero is less than 2^-46 of the product of the row's largest number and the output's largest
/// weight. Below the upper bound no part is infinite. Infinities and NaN are above it and must not be split:
/// some NaN would be split into zeros.
constexpr float kSmallestSplit = 0x1p-80F, kLargestSplit = 0x1p+120F;

/// Cache blocking of a convolution.
struct UnitGrid {
  /// Rows of blocks, and parts of steps, that are multiplied at a time, so that both operands stay in L2.
  static constexpr int64_t kMostBlocks = 8, kFewBlocks = 4, kMostParts = 108;
  /// Columns of blocks whose sums are kept across pieces of the steps.
  static constexpr int64_t kMostColumns = 16;
  /// Maximum rows of blocks times parts of steps that a thread splits for all columns, 4 MB, and maximum over
  /// all threads.
  static constexpr int64_t kMostSplit = 2040, kMostSplitOfAll = 2 * kMostSplit;
  /// Minimum rows of blocks for which the threads share out rows.
  static constexpr int64_t kManyRows = 16;

  int64_t parts, words;           // of an operand, and 16-bit words of them for a step and a block
  int64_t pixels, rows, columns;  // `rows` and `columns` count blocks
  int64_t steps_of_tap, steps;
  bool shares_rows;    // whether threads share out rows; otherwise columns
  bool is_split_once;  // whether each thread splits the whole left operand once, for all columns

  UnitGrid(const Convolution& given, int num_threads)
      : parts(parts_of(given.method)),
        words(parts * kPartWords),
        pixels(given.images * given.out_height * given.out_width),
        rows((pixels + kSplitBlock - 1) / kSplitBlock),
        columns((given.out_channels + kSplitBlock - 1) / kSplitBlock),
        steps_of_tap((given.channels + kSplitStep - 1) / kSplitStep),
        steps(given.num_taps() * steps_of_tap),
        shares_rows(shares_pixels(given, given.out_channels) && rows >= kManyRows),
        is_split_once(!shares_rows &&
                      rows * steps * parts <= std::min(kMostSplit, kMostSplitOfAll / num_threads)) {}

  int64_t most_steps() const { return kMostParts / parts; }
  int64_t num_pieces() const { return (steps + most_steps() - 1) / most_steps(); }
  /// The steps of a piece; all pieces have about the same number.
  Share piece(int64_t at) const {
    return share_of(steps, static_cast<int>(at), static_cast<int>(num_pieces()));
  }

  /// Rows and columns of blocks that are multiplied at a time.
  int64_t num_blocks() const {
    const int64_t fitting = kFewBlocks * most_steps() / steps;
    return std::min(rows, std::clamp(fitting, kFewBlocks, kMostBlocks));
  }
  int64_t num_columns() const { return num_pieces() > 1 ? std::min(columns, kMostColumns) : columns; }

  /// Rows of blocks that are split at a time.
  int64_t num_split() const { return is_split_once ? rows : num_blocks(); }

  /// Floats of scratch: split rows and sums.
  int64_t split_size() const {
    return num_split() * (is_split_once ? steps : std::min(steps, most_steps())) * words / 2;
  }
  /// Steps of a column of blocks that are multiplied at a time, with this many rows of blocks: with one part
  /// each number is read for one product only, so that half of L1 should hold those of the column.
  int64_t steps_at_a_time(int64_t blocks) const {
    constexpr int64_t kInL1 = 12;
    return parts > 1 || blocks == 1 ? steps : kInL1;
  }
  /// Whether each row of blocks has sums of its own.
  bool keeps_sums() const { return num_pieces() > 1 || steps > steps_at_a_time(num_blocks()); }
  int64_t sums_size() const {
    const int64_t kept = keeps_sums() ? num_blocks() * (num_pieces() > 1 ? num_columns() : 1) : 1;
    return kept * kSplitBlock * kSplitBlock;
  }
  int64_t scratch_size() const {
    constexpr int64_t kSlack = 16;  // for alignment to a cache line
    return sums_size() + split_size() + num_split() * kSplitBlock + kSlack;
  }
};

/// Whether this machine and a convolution support a method that uses the unit. A few channels would work too,
/// but then they need not be contiguous.
bool takes_unit(Method method, int64_t groups, int64_t channels, Element element);

/// Throws std::invalid_argument if such a method does not apply.
void check_unit(Method method, int64_t groups, int64_t channels, Element element);

/// Floats of a split weight with its bias and powers of two.
int64_t unit_size(const WeightLayout& layout);

/// Writes bias[out], power[out], and the weight[out, in, tap] divided by these powers: [column of blocks,
/// step, part, half of a block, 16 pairs of terms, 16 outputs]. `packed` has to be zeroed.
void pack_for_unit(const float* weight, const float* bias, const WeightLayout& layout, int num_threads,
                   float* packed);

/// Estimated time with this many threads, in multiplications of the direct method; of the method that is set.
double time_in_unit(const Convolution& given, int num_threads);

Work unit_work(const Convolution& given, int num_threads);

}  // namespace rlopt::kernels
