// Convolutions, products, pools, channel shuffles and what is pointwise, of images in channels_last, in
// float32, or of bfloat16 with sums in float32.
//
// A dense one is a product whose left operand is never written down: the pixels under the kernel are read
// where they are (indirect convolution; Dukhan 2019, arXiv:1907.02129). Windows of 3 x 3 may also be computed
// by Winograd's tiles, see winograd.h, and all dense ones in a matrix unit, see bf16x3.h. Weights are packed
// once, in panels as wide as some vector registers. Bias, a summand and an activation are applied before a
// result is written. A product is a convolution of pixels.
//
// Beyond the border of an image there are zeros, which are multiplied as others are or left out: with an
// infinite weight the border may be NaN, as it is in some of ATen's kernels and not in others.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "kernels/elements.h"

namespace rlopt::kernels {

/// What follows a sum. NaN stays NaN, and infinities give what ATen gives.
enum class Activation : int {
  kNone = 0,
  kRelu = 1,
  kClamp = 2,      // between low and high
  kLeakyRelu = 3,  // slope low below zero
  kHardswish = 4,
  kHardsigmoid = 5,
  kSigmoid = 6,
  kSilu = 7,
  kTanh = 8,
  kGelu = 9,
  kGeluTanh = 10,
};
constexpr int kNumActivations = 11;

/// Whether it takes an exponential.
constexpr bool is_dear(Activation activation) {
  switch (activation) {
    case Activation::kSigmoid:
    case Activation::kSilu:
    case Activation::kTanh:
    case Activation::kGelu:
    case Activation::kGeluTanh:
      return true;
    default:
      return false;
  }
}

/// How a dense convolution is computed. Tiles have so many outputs along their sides.
enum class Method : int {
  kSums = 0,
  kBf16x3 = 1,  // in a matrix unit, see bf16x3.h
  kTiles2 = 2,
  kTiles4 = 4,  // Winograd's, see winograd.h
};

/// Throws std::invalid_argument for the number of none.
Method method_of(int64_t number);

/// Strides are in elements.
struct Convolution {
  int64_t images, height, width, channels;
  int64_t image_stride, row_stride, pixel_stride, channel_stride;  // of the input
  int64_t out_height, out_width, out_channels;
  int64_t out_pixel_stride;      // from each output pixel to the next, also behind a row and an image
  int64_t summand_pixel_stride;  // the same of what is added, or of another second operand
  int64_t kernel_height, kernel_width;
  int64_t stride_y, stride_x, pad_y, pad_x, dilation_y, dilation_x;
  int64_t groups;  // of input and output channels, as many of both
  Method method;
  Activation activation;
  float low, high;
  Element element;  // of input, summand and output

  int64_t num_taps() const { return kernel_height * kernel_width; }
};

/// Whether groups share a vector, or fill one, which have as many outputs as inputs. A depthwise convolution
/// is one of groups of one channel.
bool is_by_lanes(int64_t out_channels, int64_t in_channels, int64_t groups);

inline bool is_by_lanes(const Convolution& given) {
  return is_by_lanes(given.out_channels, given.channels, given.groups);
}

/// Which instructions the kernels use on this machine: "amx" (and AVX-512), "avx512", "avx2", or "" where
/// there are none; "amx-in-software" in tests.
const char* instructions();

/// Whether there are kernels for a matrix unit too.
bool has_matrix_unit();

/// The kernels must not be called for such images where this is false. Those for bfloat16 need AVX-512 with
/// its products of bfloat16; where a matrix unit is used for float32 they leave bfloat16 to oneDNN, which
/// uses it too.
bool has_kernels(Element element);

/// Depthwise convolutions and pools compute so many channels at least, a vector of them.
constexpr int64_t kLeastChannels = 8;

/// More channels than this have no kernel: a pixel of zeros stands for what lies outside of the image.
constexpr int64_t kMaxChannels = 1 << 14;

/// Whether there is a kernel for so many groups of channels.
bool takes_groups(int64_t out_channels, int64_t in_channels, int64_t groups, Element element);

/// Sizes of a weight[out, in / groups, height, width], and how it is packed. The numbers of channels are
/// those of all groups.
struct WeightLayout {
  int64_t out_channels, in_channels, kernel_height, kernel_width, groups;
  Method method;
  Element element;  // of the images

  int64_t num_taps() const { return kernel_height * kernel_width; }
};

inline WeightLayout weight_layout(const Convolution& of) {
  return {of.out_channels, of.channels, of.kernel_height, of.kernel_width, of.groups, of.method, of.element};
}

/// Inputs of a group that are one term of a sum, where groups share a vector.
inline int64_t inputs_of_term(const WeightLayout& of) {
  return of.in_channels == of.groups ? 1 : terms_of(of.element);
}

/// Whether the weights of two rows of a kernel lie in turns, as strips of depthwise convolutions of bfloat16
/// multiply both at once (depthwise.inc). Not where there is one tap, which a norm is, whose factors stay
/// float32.
inline bool has_paired_rows(const WeightLayout& of) {
  return facts_of(of.element).has_paired_rows && of.groups == of.out_channels &&
         of.groups == of.in_channels && of.groups > 1 && of.num_taps() > 1;
}

/// Where groups share a vector: how many vectors of [out] are behind the biases.
inline int64_t rows_by_lanes(const WeightLayout& of) {
  if (has_paired_rows(of)) return (of.kernel_height + 1) / 2 * of.kernel_width;
  return of.num_taps() * (of.in_channels / of.groups / inputs_of_term(of));
}

/// Number of floats of a packed weight, or of as much memory; the same for every input. Throws
/// std::invalid_argument for groups that have no kernel, and for what cannot be computed by such a method.
size_t packed_size(const WeightLayout& layout);

/// The method by which a convolution takes so many threads the least time, whatever the one is that it has.
Method best_method(const Convolution& given, int num_threads);

/// Packed weights of fewer floats are written in one thread: waking another takes longer.
constexpr size_t kSmallPacked = 1 << 15;

/// Packs a weight, and bias[out], which may be null. For images of bfloat16 dense weights are rounded to it,
/// those of small groups and depthwise ones too; biases and the factors of one tap of each channel stay
/// float32. In up to `num_threads` threads.
void pack(const float* weight, const float* bias, const WeightLayout& layout, int num_threads, float* packed);

/// With fewer channels than this, the input of a window of several pixels may lie in any way. Of all others
/// the channels of a pixel have to be next to each other.
constexpr int64_t kFewChannels = 8;

inline bool takes_any_strides(const Convolution& given) {
  return given.channels < kFewChannels && given.groups == 1 && given.num_taps() > 1;
}

/// What a pool makes of the pixels under its window.
enum class Pool : int {
  kMax = 0,           // NaN where one is
  kMean = 1,          // over the window, with what is padded
  kMeanOfInside = 2,  // over the pixels of the image only
};
constexpr int kNumPools = 3;

/// What is done to each element of an image, before the activation.
enum class Pointwise : int {
  kActivate = 0,
  kAdd = 1,       // another image
  kMultiply = 2,  // by another such image
  kScale = 3,     // each channel by a number; as many of them for each image
};
constexpr int kNumPointwise = 4;

struct Job;

/// One call of a kernel: what is known of it before its operands are there.
struct Work {
  Convolution given{};
  void (*kernel)(const Job&, int thread, int num_threads) = nullptr;
  int num_threads = 1;            // as many as pay
  int parts_of_thread = 1;        // into which its share is cut, so that another thread can do some of it
  int64_t scratch_of_thread = 0;  // floats
  int64_t tiles_of_block = 0;     // that are computed together, by Winograd's method
  // For phases.h: of one thread, in multiplications of sums that take as long; and floats of weights, whose
  // first read is not in it. In a matrix unit it is, and there are none.
  double time = 0, weights = 0;
  Pool pool = Pool::kMax;
  Pointwise pointwise = Pointwise::kActivate;

  /// Whether there is anything to compute.
  bool is_empty() const;
};

/// Where the operands of a call begin; null where there is none.
struct Operands {
  const void* in = nullptr;
  const float* packed = nullptr;
  const void* other = nullptr;  // added to a convolution, or the second operand of what is pointwise
  void* out = nullptr;
  float* scratch = nullptr;  // `scratch_of_thread` for each thread
};

/// out = activation(conv(in) + bias + other). In up to `num_threads` threads.
Work convolution_work(const Convolution& given, int num_threads);

/// Of `given`, what belongs to weights and activations is not read.
Work pool_work(const Convolution& given, Pool kind, int num_threads);

Work pointwise_work(const Convolution& given, Pointwise kind, int num_threads);

/// Channel shuffle: out[c * groups + group] = in[group * channels / groups + c] of each pixel.
Work shuffle_work(const Convolution& given, int num_threads);

/// Which part of a thread's share comes next. In a cache line of its own, as other threads ask too.
struct alignas(64) Turn {
  std::atomic<int> next{0};
};

/// The share of one of `count` threads, which all have to call this, and then parts of the others' shares
/// that nobody has begun: a core may be slower than another, or busy with something else. `turns` is of these
/// threads, at zero.
void run_share(const Work& work, const Operands& operands, int thread, int count, Turn* turns);

/// Whether none of so many numbers is infinite or NaN. In this thread.
bool is_finite(const float* from, int64_t count);

/// All of it, in threads of the OpenMP that is loaded, and with scratch of its own. Throws std::bad_alloc.
void run(const Work& work, Operands operands);

}  // namespace rlopt::kernels
