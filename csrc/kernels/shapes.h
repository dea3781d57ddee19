// Translates calls on tensors into kernel calls: the sizes of results, and whether the operands' layouts are
// supported. Misuse throws std::invalid_argument.
#pragma once

#include <array>
#include <optional>

#include "kernels/convolution.h"

namespace rlopt::kernels {

constexpr size_t kImageRank = 4;
constexpr size_t kMostAxes = 8;
using Axes = std::array<int64_t, kMostAxes>;

/// Windows with larger strides, paddings, dilations or kernels, and images with longer axes, have no kernel:
/// offsets in an image, or the memory for what a tile sees, might overflow. Nobody needs them.
constexpr int64_t kMostStep = 1 << 12, kMostSize = int64_t{1} << 31;

/// Sizes and strides of a tensor, in elements. Rank 4: an image, or a part of the channels of one; rank 2 and
/// 3: rows along the last axis. Products take any rank as rows.
struct Shape {
  size_t rank = 0;
  Axes sizes{}, strides{};
  Element element = Element::kFloat32;

  /// Number of elements.
  int64_t size() const;

  /// Whether it has no elements: then its strides are meaningless.
  bool is_empty() const;

  /// Whether its elements are contiguous in row-major order.
  bool is_contiguous() const;

  /// Size of its memory in floats.
  int64_t num_floats() const;

  bool operator==(const Shape& other) const;
};

/// Whether pointwise operators treat it as rows.
inline bool is_of_rows(const Shape& shape) { return shape.rank == 2 || shape.rank == 3; }

/// Strides of a contiguous tensor with these sizes.
void lie_contiguously(Shape& shape);

/// A contiguous float32 tensor of these sizes.
Shape contiguous(std::initializer_list<int64_t> sizes);

/// An image in channels_last.
Shape channels_last(int64_t images, int64_t channels, int64_t height, int64_t width,
                    Element element = Element::kFloat32);

/// An activation and its two parameters.
struct Epilogue {
  Activation activation = Activation::kNone;
  float low = 0, high = 0;
};

/// What a call multiplies, and what it writes; absent: what it reads, and what it multiplies.
struct Types {
  std::optional<Element> products, result;
};

/// How windows cover an image. `out_channels` is ignored for a pool. Padding before the image may be
/// negative: then the first window begins inside.
struct Window {
  int64_t out_channels, kernel_height, kernel_width, stride_y, stride_x, pad_y, pad_x, dilation_y, dilation_x;
  int64_t pad_below, pad_behind;  // on the other sides
};

/// A call whose operands can be read: complete except for the place of the result.
struct Call {
  Convolution given;
  Shape result;  // as a separate tensor
};

/// Nothing if the layout or the type of the input or the summand is not supported, or windows are beyond
/// kMostStep.
std::optional<Call> convolution_of(const Shape& in, const Shape* summand, const Window& window,
                                   int64_t groups, Method method, const Epilogue& epilogue,
                                   const Types& types = {});
/// `is_ceiled`: the last window may end outside.
std::optional<Call> pool_of(const Shape& in, const Window& window, bool is_ceiled, const Types& types = {});
/// x[..., in] to [..., out].
std::optional<Call> linear_of(const Shape& in, int64_t outputs, Method method, const Epilogue& epilogue,
                              const Types& types = {});
/// `other` is null for kActivate. Images, or rows with others of the same sizes, both of one type.
std::optional<Call> pointwise_of(const Shape& in, const Shape* other, Pointwise kind,
                                 const Epilogue& epilogue, const Types& types = {});

/// Interleaves the channels of the groups: see shuffle_work.
std::optional<Call> shuffle_of(const Shape& in, int64_t groups);

/// Writes the result into the channels of the concat buffer `room` from `first_channel` on. Returns the
/// offset.
int64_t write_into(Call& call, const Shape& room, int64_t first_channel);

}  // namespace rlopt::kernels
