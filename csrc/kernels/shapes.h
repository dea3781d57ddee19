// What a call on tensors is to the kernels: the sizes of its result, and whether its operands lie as they are
// read. Misuse throws std::invalid_argument.
#pragma once

#include <array>
#include <optional>

#include "kernels/convolution.h"

namespace rlopt::kernels {

constexpr size_t kImageRank = 4;
constexpr size_t kMostAxes = 8;
using Axes = std::array<int64_t, kMostAxes>;

/// Windows with larger strides, paddings, dilations or kernels, and axes of images that are longer, have no
/// kernel: a place in an image, or memory for what a tile sees, might be no number any more. Nobody needs
/// them.
constexpr int64_t kMostStep = 1 << 12, kMostSize = int64_t{1} << 31;

/// Sizes and strides of a tensor, in elements. Of rank 4 it is an image, or a room in one; of rank 2 and 3
/// rows of the last axis. Products take any rank for rows.
struct Shape {
  size_t rank = 0;
  Axes sizes{}, strides{};
  Element element = Element::kFloat32;

  /// Number of elements.
  int64_t size() const;

  /// Whether it has no element: then its strides say nothing.
  bool is_empty() const;

  /// Whether its elements follow on each other, the last axis the quickest.
  bool is_contiguous() const;

  /// Floats that have as much memory as all elements.
  int64_t num_floats() const;

  bool operator==(const Shape& other) const;
};

/// Whether what is pointwise takes it for rows.
inline bool is_of_rows(const Shape& shape) { return shape.rank == 2 || shape.rank == 3; }

/// Contiguous, with these sizes, of float32.
Shape contiguous(std::initializer_list<int64_t> sizes);

/// An image in channels_last.
Shape channels_last(int64_t images, int64_t channels, int64_t height, int64_t width,
                    Element element = Element::kFloat32);

/// An activation with two numbers that it may have.
struct Epilogue {
  Activation activation = Activation::kNone;
  float low = 0, high = 0;
};

/// Where windows lie over an image. `out_channels` is not read where it is a pool. What is padded in front
/// may be less than nothing: then the first window begins inside.
struct Window {
  int64_t out_channels, kernel_height, kernel_width, stride_y, stride_x, pad_y, pad_x, dilation_y, dilation_x;
  int64_t pad_below, pad_behind;  // on the other sides
};

/// A call whose operands can be read: all of it but where the result goes.
struct Call {
  Convolution given;
  Shape result;  // as a tensor of its own
};

/// Nothing where the input or the summand does not lie as it is read, or windows are beyond kMostStep.
std::optional<Call> convolution_of(const Shape& in, const Shape* summand, const Window& window,
                                   int64_t groups, Method method, const Epilogue& epilogue);
/// `is_ceiled`: the last window may end outside.
std::optional<Call> pool_of(const Shape& in, const Window& window, bool is_ceiled);
/// x[..., in] to [..., out].
std::optional<Call> linear_of(const Shape& in, int64_t outputs, Method method, const Epilogue& epilogue);
/// `other` is null for kActivate. Images, or rows with others of the same sizes.
std::optional<Call> pointwise_of(const Shape& in, const Shape* other, Pointwise kind,
                                 const Epilogue& epilogue);

/// The channels in turns, one of each group: see shuffle_work.
std::optional<Call> shuffle_of(const Shape& in, int64_t groups);

/// Has the result written into the channels of `room` from `first_channel` on. Returns where it begins.
int64_t write_into(Call& call, const Shape& room, int64_t first_channel);

}  // namespace rlopt::kernels
