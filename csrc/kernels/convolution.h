// Convolutions, products, pools, channel shuffles and pointwise operators on channels_last images, in
// float32, or in bfloat16 with float32 sums. Results may be of the other type than what is multiplied, and so
// may be some operands: nothing is rounded or widened in between.
//
// A dense convolution is a product whose left operand is never materialised: the pixels under the kernel are
// read in place (indirect convolution; Dukhan 2019, arXiv:1907.02129). Windows of 3 x 3 may also use
// Winograd's tiles, see winograd.h, and all dense convolutions a matrix unit, see matrix_unit.h. Weights are
// packed once, in panels as wide as some vector registers. Bias, a summand and an activation are applied
// before a result is written. A matrix product is a convolution of pixels.
//
// Beyond the border of an image there are zeros, which are either multiplied like other numbers or skipped:
// with an infinite weight the border may be NaN, as it is in some of ATen's kernels and not in others.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "kernels/elements.h"

namespace rlopt::kernels {

/// Activation after a sum. NaN stays NaN, and infinities give the same result as in ATen.
enum class Activation : int {
  kNone = 0,
  kRelu = 1,
  kClamp = 2,      // between `low` and `high`
  kLeakyRelu = 3,  // slope `low` below zero
  kHardswish = 4,
  kHardsigmoid = 5,
  kSigmoid = 6,
  kSilu = 7,
  kTanh = 8,
  kGelu = 9,
  kGeluTanh = 10,
};
constexpr int kNumActivations = 11;

/// Whether it needs an exponential.
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

/// How a dense convolution is computed. The number of a Winograd method is the output tile's side.
enum class Method : int {
  kSums = 0,
  kBf16x3 = 1,  // of float32 on a matrix unit, see matrix_unit.h
  kTiles2 = 2,
  kTiles4 = 4,  // Winograd, see winograd.h
  kInt8 = 8,    // of quantised numbers, see int8.h
  kBf16x2 = 9,  // as kBf16x3, less exact
  kBf16 = 10,   // of bfloat16 on a matrix unit
};

/// Throws std::invalid_argument for an unknown number.
Method method_of(int64_t number);

/// Strides are in elements.
struct Convolution {
  int64_t images, height, width, channels;
  int64_t image_stride, row_stride, pixel_stride, channel_stride;  // of the input
  int64_t out_height, out_width, out_channels;
  int64_t out_pixel_stride;      // between output pixels, also across rows and images
  int64_t summand_pixel_stride;  // the same for the summand, or for another second operand
  int64_t kernel_height, kernel_width;
  int64_t stride_y, stride_x, pad_y, pad_x, dilation_y, dilation_x;
  int64_t groups;  // of input and output channels alike
  Method method;
  Activation activation;
  float low, high;
  Element element;      // that is multiplied: the weight is packed for it
  Element in_element;   // of the input: `element`, or float32 where `rounds_input`
  Element out_element;  // of the output and the summand; the second operand of an image is of the first's

  int64_t num_taps() const { return kernel_height * kernel_width; }
};

/// Whether several groups share a vector, or one fills it; these have as many outputs as inputs. A depthwise
/// convolution has groups of one channel.
bool is_by_lanes(int64_t out_channels, int64_t in_channels, int64_t groups);

inline bool is_by_lanes(const Convolution& given) {
  return is_by_lanes(given.out_channels, given.channels, given.groups);
}

/// The instruction set that the kernels use on this machine: "amx" (with AVX-512), "avx512", "avx2", or "" if
/// there are no kernels; "amx-in-software" in tests.
const char* instructions();

/// Whether there are kernels for a matrix unit.
bool has_matrix_unit();

/// Whether there are products of 8-bit integers for such images.
bool has_int8(Element element);

/// If this is false, the kernels must not be called for such images. Those for bfloat16 need AVX-512 with
/// bfloat16 products.
bool has_kernels(Element element);

/// Minimum channels of depthwise convolutions and pools: one vector.
constexpr int64_t kLeastChannels = 8;

/// More channels than this have no kernel: a pixel of zeros stands for pixels outside the image.
constexpr int64_t kMaxChannels = 1 << 14;

/// Whether there is a kernel for this many groups of channels.
bool takes_groups(int64_t out_channels, int64_t in_channels, int64_t groups, Element element);

/// Sizes of a weight[out, in / groups, height, width], and its packing. The numbers of channels are totals
/// over all groups.
struct WeightLayout {
  int64_t out_channels, in_channels, kernel_height, kernel_width, groups;
  Method method;
  Element element;  // of the images

  int64_t num_taps() const { return kernel_height * kernel_width; }
};

inline WeightLayout weight_layout(const Convolution& of) {
  return {of.out_channels, of.channels, of.kernel_height, of.kernel_width, of.groups, of.method, of.element};
}

/// Inputs of a group that form one term of a sum if groups share a vector.
inline int64_t inputs_of_term(const WeightLayout& of) {
  return of.in_channels == of.groups ? 1 : terms_of(of.element);
}

/// Whether the weights of two rows of a kernel are interleaved, so that strips of bfloat16 depthwise
/// convolutions multiply both at once (depthwise.inc). Not with one tap: that is a norm, whose factors stay
/// float32.
inline bool has_paired_rows(const WeightLayout& of) {
  return facts_of(of.element).has_paired_rows && of.groups == of.out_channels &&
         of.groups == of.in_channels && of.groups > 1 && of.num_taps() > 1;
}

/// If groups share a vector: number of vectors of [out] after the biases.
inline int64_t rows_by_lanes(const WeightLayout& of) {
  if (has_paired_rows(of)) return (of.kernel_height + 1) / 2 * of.kernel_width;
  return of.num_taps() * (of.in_channels / of.groups / inputs_of_term(of));
}

/// Size of a packed weight in floats (or their equivalent in memory); it does not depend on the input. Throws
/// std::invalid_argument for groups without a kernel and for methods that do not apply.
size_t packed_size(const WeightLayout& layout);

/// The fastest method for a convolution with this many threads, of those that are equal over the reals.
/// Ignores the method that is set. If `may_split`, kBf16x2 is one of them.
Method best_method(const Convolution& given, int num_threads, bool may_split);

/// Packed weights with fewer floats are written in one thread: waking another takes longer.
constexpr size_t kSmallPacked = 1 << 15;

/// Packs a weight, and bias[out], which may be null. For bfloat16 images dense, small-group and depthwise
/// weights are rounded to bfloat16; biases and the factors of one tap per channel stay float32. In up to
/// `num_threads` threads.
void pack(const float* weight, const float* bias, const WeightLayout& layout, int num_threads, float* packed);

/// With fewer channels than this, the input of a window of several pixels may have any strides. In all other
/// cases the channels of a pixel have to be contiguous.
constexpr int64_t kFewChannels = 8;

inline bool takes_any_strides(const Convolution& given) {
  return given.channels < kFewChannels && given.groups == 1 && given.num_taps() > 1;
}

/// Whether a kernel rounds float32 inputs to bfloat16 while it reads them: products, and windows that
/// `takes_any_strides`.
bool rounds_input(const Convolution& given);

/// How a pool reduces the pixels under its window.
enum class Pool : int {
  kMax = 0,           // NaN if any is NaN
  kMean = 1,          // over the window, including padding
  kMeanOfInside = 2,  // over the pixels inside the image only
};
constexpr int kNumPools = 3;

/// Pointwise operator, applied before the activation.
enum class Pointwise : int {
  kActivate = 0,
  kAdd = 1,       // adds another image
  kMultiply = 2,  // multiplies by another image
  kScale = 3,     // scales each channel by a number; each image has its own
};
constexpr int kNumPointwise = 4;

struct Job;

/// One call of a kernel: all that is known before the operands exist.
struct Work {
  Convolution given{};
  void (*kernel)(const Job&, int thread, int num_threads) = nullptr;
  int num_threads = 1;            // as many as are worthwhile
  int parts_of_thread = 1;        // for work stealing: a share is cut into this many parts
  int64_t scratch_of_thread = 0;  // floats
  int64_t tiles_of_block = 0;     // Winograd: tiles that are computed together
  // For phases.h: time in one thread, in multiplications of the direct method, and floats of weights, whose
  // first read is not included. It is for floating-point products on a matrix unit, whose `weights` are 0.
  double time = 0, weights = 0;
  Pool pool = Pool::kMax;
  Pointwise pointwise = Pointwise::kActivate;

  /// Whether there is nothing to compute.
  bool is_empty() const;
};

/// Where a call's operands begin; null if absent.
struct Operands {
  const void* in = nullptr;
  const float* packed = nullptr;
  const void* other = nullptr;  // summand of a convolution, or second operand of a pointwise operator
  void* out = nullptr;
  float* scratch = nullptr;  // `scratch_of_thread` floats for each thread
};

/// out = activation(conv(in) + bias + other). In up to `num_threads` threads.
Work convolution_work(const Convolution& given, int num_threads);

/// Ignores the fields of `given` that concern weights and activations.
Work pool_work(const Convolution& given, Pool kind, int num_threads);

Work pointwise_work(const Convolution& given, Pointwise kind, int num_threads);

/// Channel shuffle: out[c * groups + group] = in[group * channels / groups + c] for each pixel.
Work shuffle_work(const Convolution& given, int num_threads);

/// The next part of a thread's share. In its own cache line, because other threads read it too.
struct alignas(64) Turn {
  std::atomic<int> next{0};
};

/// Runs the share of one of `count` threads, all of which have to call this, and then steals parts of the
/// others' shares: a core may be slower than another, or busy with something else. `turns` has one counter
/// per thread, initially zero.
void run_share(const Work& work, const Operands& operands, int thread, int count, Turn* turns);

/// Whether all of these numbers are finite. Runs in the calling thread.
bool is_finite(const float* from, int64_t count);

/// Runs the whole call in the threads of the loaded OpenMP, and allocates the scratch. Throws std::bad_alloc.
void run(const Work& work, Operands operands);

}  // namespace rlopt::kernels
