// Dense convolutions and products of float32 in the matrix unit of the processor (Intel's AMX), which
// multiplies numbers of bfloat16 and sums up in float32.
//
// A float32 is the sum of three numbers of bfloat16: 24 bits of a significand are three times 8. Of the nine
// products of the parts of two numbers the six largest are summed up; the others are less than 2^-25 of the
// whole each, and so less than what float32 rounds (Henry, Tang and Heinecke 2019, arXiv:1904.06376; the
// scheme is known as bf16x3). So the error is that of a sum in float32. A matrix unit does sixteen times the
// multiplications of the vectors, and this way needs six of them.
//
// The unit takes what is smaller than 2^-126 for zero. So weights of an output that are all smaller than one
// are multiplied by a power of two, such that the largest is about one, and a row of the left operand whose
// largest number is too small or too large is computed as sums of products of float32. So is a row of a block
// with a result that is not finite: of infinities only the first part means something.
#pragma once

#include "kernels/job.h"

namespace rlopt::kernels {

/// Rows and columns of a block of results: two tiles of the unit along each side.
constexpr int64_t kSplitBlock = 32;

/// So many terms of a sum are multiplied by one instruction.
constexpr int64_t kSplitStep = 32;

/// A float32 has so many parts.
constexpr int64_t kSplitParts = 3;

/// Words of 16 bits that one step reads of one operand, for one block of results.
constexpr int64_t kSplitWords = kSplitParts * kSplitBlock * kSplitStep;

/// Bounds for the largest number of a row, if it is not zero. Above the lower one a product that the unit
/// takes for zero is less than 2^-46 of that of the row's largest number and the output's largest weight.
/// Below the upper one no part is infinite; infinities and NaN are above it, which must not be split: some
/// NaN would be split into zeros.
constexpr float kSmallestSplit = 0x1p-80F, kLargestSplit = 0x1p+120F;

/// How a convolution is cut into blocks.
struct Bf16x3Grid {
  /// Rows of blocks and steps that are multiplied at a time: both operands stay in the second cache then.
  static constexpr int64_t kMostBlocks = 8, kFewBlocks = 4, kMostSteps = 36;
  /// Columns of blocks whose sums are kept from some steps to the next.
  static constexpr int64_t kMostColumns = 16;
  /// Rows of blocks times steps that a thread splits for all columns, 4 MB, and that all of them do.
  static constexpr int64_t kMostSplit = 680, kMostSplitOfAll = 2 * kMostSplit;
  /// So many rows of blocks are enough for the threads to share out rows.
  static constexpr int64_t kManyRows = 16;

  int64_t pixels, rows, columns;  // `rows` and `columns` of blocks
  int64_t steps_of_tap, steps;
  bool shares_rows;    // whether threads share out rows, or else columns
  bool is_split_once;  // whether each thread splits all of the left operand once, for all columns

  Bf16x3Grid(const Convolution& given, int num_threads)
      : pixels(given.images * given.out_height * given.out_width),
        rows((pixels + kSplitBlock - 1) / kSplitBlock),
        columns((given.out_channels + kSplitBlock - 1) / kSplitBlock),
        steps_of_tap((given.channels + kSplitStep - 1) / kSplitStep),
        steps(given.num_taps() * steps_of_tap),
        shares_rows(shares_pixels(given, given.out_channels) && rows >= kManyRows),
        is_split_once(!shares_rows && rows * steps <= std::min(kMostSplit, kMostSplitOfAll / num_threads)) {}

  int64_t num_pieces() const { return (steps + kMostSteps - 1) / kMostSteps; }
  /// The steps of a piece; all pieces have about equally many.
  Share piece(int64_t at) const {
    return share_of(steps, static_cast<int>(at), static_cast<int>(num_pieces()));
  }

  /// Rows of blocks that are multiplied at a time, and columns.
  int64_t num_blocks() const {
    const int64_t fitting = kFewBlocks * kMostSteps / steps;
    return std::min(rows, std::clamp(fitting, kFewBlocks, kMostBlocks));
  }
  int64_t num_columns() const { return num_pieces() > 1 ? std::min(columns, kMostColumns) : columns; }

  /// Rows of blocks that are split at a time.
  int64_t num_split() const { return is_split_once ? rows : num_blocks(); }

  /// Floats of scratch: split rows, and sums.
  int64_t split_size() const {
    return num_split() * (is_split_once ? steps : std::min(steps, kMostSteps)) * kSplitWords / 2;
  }
  int64_t sums_size() const {
    return (num_pieces() > 1 ? num_blocks() * num_columns() : 1) * kSplitBlock * kSplitBlock;
  }
  int64_t scratch_size() const {
    constexpr int64_t kSlack = 16;  // up to where a cache line begins
    return sums_size() + split_size() + num_split() * kSplitBlock + kSlack;
  }
};

/// Whether this machine and a convolution are such that it can be computed so. With a few channels it could,
/// but they need not lie next to each other then.
bool takes_bf16x3(int64_t groups, int64_t channels, Element element);

/// Throws std::invalid_argument where it cannot.
void check_bf16x3(int64_t groups, int64_t channels, Element element);

/// Floats of a split weight, with its bias and powers of two.
int64_t bf16x3_size(int64_t out_channels, int64_t in_channels, int64_t num_taps);

/// Writes bias[out], power[out], and weight[out, in, tap] over these powers: [column of blocks, step, part,
/// half of a block, 16 pairs of terms, 16 outputs]. `packed` is zero.
void pack_bf16x3(const float* weight, const float* bias, int64_t out_channels, int64_t in_channels,
                 int64_t num_taps, int num_threads, float* packed);

/// How long it takes so many threads together, in multiplications of sums.
double time_of_bf16x3(const Convolution& given, int num_threads);

Work bf16x3_work(const Convolution& given, int num_threads);

}  // namespace rlopt::kernels
