// Dense convolutions and products of float32 on the processor's matrix unit (Intel's AMX), which multiplies
// bfloat16 numbers and accumulates in float32.
//
// A float32 is the sum of three bfloat16 numbers: a significand of 24 bits is three times 8. Of the nine
// products of the parts of two numbers the six largest are summed; each of the others is less than 2^-25 of
// the whole, and so less than the rounding of float32 (Henry, Tang and Heinecke 2019, arXiv:1904.06376; the
// scheme is known as bf16x3). So the error is that of a float32 sum. A matrix unit does sixteen times the
// multiplications of the vector units, and this method needs six of them per product.
//
// The unit flushes magnitudes below 2^-126 to zero. So if all weights of an output are smaller than one, they
// are multiplied by a power of two that brings the largest close to one, and rows of the left operand whose
// largest number is too small or too large are computed directly in float32. So are rows of a block with a
// result that is not finite: only the first part of an infinity is meaningful.
#pragma once

#include "kernels/job.h"

namespace rlopt::kernels {

/// Rows and columns of a block of results: two tiles of the unit in each direction.
constexpr int64_t kSplitBlock = 32;

/// Terms of a sum that one instruction multiplies.
constexpr int64_t kSplitStep = 32;

/// Parts that a float32 is split into.
constexpr int64_t kSplitParts = 3;

/// 16-bit words of one operand that one step reads for one block of results.
constexpr int64_t kSplitWords = kSplitParts * kSplitBlock * kSplitStep;

/// Bounds for the largest number of a row, if it is not zero. Above the lower bound, a product that the unit
/// flushes to zero is less than 2^-46 of the product of the row's largest number and the output's largest
/// weight. Below the upper bound no part is infinite. Infinities and NaN are above it and must not be split:
/// some NaN would be split into zeros.
constexpr float kSmallestSplit = 0x1p-80F, kLargestSplit = 0x1p+120F;

/// Cache blocking of a convolution.
struct Bf16x3Grid {
  /// Rows of blocks, and steps, that are multiplied at a time, so that both operands stay in L2.
  static constexpr int64_t kMostBlocks = 8, kFewBlocks = 4, kMostSteps = 36;
  /// Columns of blocks whose sums are kept across pieces of the steps.
  static constexpr int64_t kMostColumns = 16;
  /// Maximum rows of blocks times steps that a thread splits for all columns, 4 MB, and maximum over all
  /// threads.
  static constexpr int64_t kMostSplit = 680, kMostSplitOfAll = 2 * kMostSplit;
  /// Minimum rows of blocks for which the threads share out rows.
  static constexpr int64_t kManyRows = 16;

  int64_t pixels, rows, columns;  // `rows` and `columns` count blocks
  int64_t steps_of_tap, steps;
  bool shares_rows;    // whether threads share out rows; otherwise columns
  bool is_split_once;  // whether each thread splits the whole left operand once, for all columns

  Bf16x3Grid(const Convolution& given, int num_threads)
      : pixels(given.images * given.out_height * given.out_width),
        rows((pixels + kSplitBlock - 1) / kSplitBlock),
        columns((given.out_channels + kSplitBlock - 1) / kSplitBlock),
        steps_of_tap((given.channels + kSplitStep - 1) / kSplitStep),
        steps(given.num_taps() * steps_of_tap),
        shares_rows(shares_pixels(given, given.out_channels) && rows >= kManyRows),
        is_split_once(!shares_rows && rows * steps <= std::min(kMostSplit, kMostSplitOfAll / num_threads)) {}

  int64_t num_pieces() const { return (steps + kMostSteps - 1) / kMostSteps; }
  /// The steps of a piece; all pieces have about the same number.
  Share piece(int64_t at) const {
    return share_of(steps, static_cast<int>(at), static_cast<int>(num_pieces()));
  }

  /// Rows and columns of blocks that are multiplied at a time.
  int64_t num_blocks() const {
    const int64_t fitting = kFewBlocks * kMostSteps / steps;
    return std::min(rows, std::clamp(fitting, kFewBlocks, kMostBlocks));
  }
  int64_t num_columns() const { return num_pieces() > 1 ? std::min(columns, kMostColumns) : columns; }

  /// Rows of blocks that are split at a time.
  int64_t num_split() const { return is_split_once ? rows : num_blocks(); }

  /// Floats of scratch: split rows and sums.
  int64_t split_size() const {
    return num_split() * (is_split_once ? steps : std::min(steps, kMostSteps)) * kSplitWords / 2;
  }
  int64_t sums_size() const {
    return (num_pieces() > 1 ? num_blocks() * num_columns() : 1) * kSplitBlock * kSplitBlock;
  }
  int64_t scratch_size() const {
    constexpr int64_t kSlack = 16;  // for alignment to a cache line
    return sums_size() + split_size() + num_split() * kSplitBlock + kSlack;
  }
};

/// Whether this machine and a convolution support the method. A few channels would work too, but then they
/// need not be contiguous.
bool takes_bf16x3(int64_t groups, int64_t channels, Element element);

/// Throws std::invalid_argument if the method does not apply.
void check_bf16x3(int64_t groups, int64_t channels, Element element);

/// Floats of a split weight with its bias and powers of two.
int64_t bf16x3_size(int64_t out_channels, int64_t in_channels, int64_t num_taps);

/// Writes bias[out], power[out], and the weight[out, in, tap] divided by these powers: [column of blocks,
/// step, part, half of a block, 16 pairs of terms, 16 outputs]. `packed` has to be zeroed.
void pack_bf16x3(const float* weight, const float* bias, int64_t out_channels, int64_t in_channels,
                 int64_t num_taps, int num_threads, float* packed);

/// Estimated time with this many threads, in multiplications of the direct method.
double time_of_bf16x3(const Convolution& given, int num_threads);

Work bf16x3_work(const Convolution& given, int num_threads);

}  // namespace rlopt::kernels
