#include "kernels/shapes.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <stdexcept>

#include "kernels/int8.h"
#include "kernels/matrix_unit.h"
#include "kernels/winograd.h"

namespace rlopt::kernels {

int64_t Shape::size() const {
  return std::accumulate(sizes.begin(), sizes.begin() + static_cast<int64_t>(rank), int64_t{1},
                         std::multiplies<>());
}

bool Shape::is_empty() const { return std::count(sizes.begin(), sizes.begin() + rank, 0) > 0; }

bool Shape::is_contiguous() const {
  int64_t stride = 1;
  for (size_t i = rank; i-- > 0;) {
    if (sizes[i] > 1 && strides[i] != stride) return false;
    stride *= sizes[i];
  }
  return true;
}

int64_t Shape::num_floats() const { return (size() + terms_of(element) - 1) / terms_of(element); }

bool Shape::operator==(const Shape& other) const {
  return rank == other.rank && element == other.element &&
         std::equal(sizes.begin(), sizes.begin() + rank, other.sizes.begin()) &&
         std::equal(strides.begin(), strides.begin() + rank, other.strides.begin());
}

void lie_contiguously(Shape& shape) {
  int64_t stride = 1;
  for (size_t i = shape.rank; i-- > 0;) {
    shape.strides[i] = stride;
    stride *= std::max<int64_t>(shape.sizes[i], 1);
  }
}

Shape contiguous(std::initializer_list<int64_t> sizes) {
  Shape made;
  made.rank = sizes.size();
  std::copy(sizes.begin(), sizes.end(), made.sizes.begin());
  lie_contiguously(made);
  return made;
}

Shape channels_last(int64_t images, int64_t channels, int64_t height, int64_t width, Element element) {
  Shape made;
  made.element = element;
  made.rank = kImageRank;
  made.sizes = {images, channels, height, width};
  made.strides = {channels * height * width, 1, width * channels, channels};
  return made;
}

namespace {

/// Whether a tensor has these sizes and its pixels are this many elements apart.
bool has_pixels(const Shape& image, const Shape& sizes, int64_t pixel_stride) {
  const Axes& size = sizes.sizes;
  const Axes strides{size[2] * size[3] * pixel_stride, 1, size[3] * pixel_stride, pixel_stride};
  if (image.rank != kImageRank || !std::equal(size.begin(), size.begin() + kImageRank, image.sizes.begin()))
    return false;
  if (image.is_empty()) return true;
  for (size_t i = 0; i < kImageRank; ++i)
    if (size[i] > 1 && image.strides[i] != strides[i]) return false;
  return true;
}

/// The distance between the pixels of an image if it is constant; `least` if there is only one.
int64_t pixel_stride_of(const Shape& image, int64_t least) {
  for (const size_t axis : {3, 2, 0})
    if (image.sizes[axis] > 1) return image.strides[axis];
  return least;
}

/// Whether an image of these sizes can be a second operand.
bool apply_other(Convolution& given, const Shape& other, const Shape& wanted) {
  if (other.rank != kImageRank) return false;
  given.summand_pixel_stride = pixel_stride_of(other, given.out_channels);
  return has_pixels(other, wanted, given.summand_pixel_stride);
}

/// Number of windows along an axis. A pool may end with a partial window, as in ATen.
int64_t windows_of(int64_t size, int64_t padding, int64_t behind, int64_t dilation, int64_t kernel,
                   int64_t stride, bool is_ceiled) {
  const int64_t left = size + padding + behind - dilation * (kernel - 1) - 1 + (is_ceiled ? stride - 1 : 0);
  int64_t count = (left >= 0 ? left / stride : -((stride - 1 - left) / stride)) + 1;
  if (is_ceiled && (count - 1) * stride >= size + padding) --count;  // begins inside, or before the image
  return std::max<int64_t>(count, 0);
}

/// The input of a call.
Convolution read(const Shape& in) {
  Convolution given{};
  given.element = in.element;
  given.in_element = in.element;
  given.out_element = in.element;
  given.groups = 1;
  given.images = in.sizes[0];
  given.channels = in.sizes[1];
  given.height = in.sizes[2];
  given.width = in.sizes[3];
  given.image_stride = in.strides[0];
  given.channel_stride = in.sizes[1] > 1 ? in.strides[1] : 1;
  given.row_stride = in.strides[2];
  given.pixel_stride = in.strides[3];
  return given;
}

/// Whether offsets and scratch for such windows do not overflow, and are not much larger than the image.
bool is_of_usual_size(const Shape& in, const Window& window) {
  const std::array<int64_t, 10> steps{
      window.kernel_height, window.kernel_width, window.stride_y, window.stride_x,  window.dilation_y,
      window.dilation_x,    window.pad_y,        window.pad_x,    window.pad_below, window.pad_behind};
  const auto is_usual = [](int64_t step) { return -kMostStep <= step && step <= kMostStep; };
  return std::all_of(steps.begin(), steps.end(), is_usual) &&
         std::all_of(in.sizes.begin(), in.sizes.begin() + kImageRank,
                     [](int64_t size) { return size <= kMostSize; });
}

/// The input and its windows. Nothing if these are not of a usual size.
std::optional<Convolution> geometry(const Shape& in, const Window& window, bool is_ceiled) {
  Convolution given = read(in);
  if (given.channels > kMaxChannels) throw std::invalid_argument("too many channels");
  given.out_channels = window.out_channels;
  given.kernel_height = window.kernel_height;
  given.kernel_width = window.kernel_width;
  given.stride_y = window.stride_y;
  given.stride_x = window.stride_x;
  given.pad_y = window.pad_y;
  given.pad_x = window.pad_x;
  given.dilation_y = window.dilation_y;
  given.dilation_x = window.dilation_x;
  if (std::min({given.out_channels, given.kernel_height, given.kernel_width, given.stride_y, given.stride_x,
                given.dilation_y, given.dilation_x}) < 1)
    throw std::invalid_argument("no such window");
  if (given.out_channels > kMaxChannels || !is_of_usual_size(in, window)) return std::nullopt;
  given.out_height = windows_of(given.height, given.pad_y, window.pad_below, given.dilation_y,
                                given.kernel_height, given.stride_y, is_ceiled);
  given.out_width = windows_of(given.width, given.pad_x, window.pad_behind, given.dilation_x,
                               given.kernel_width, given.stride_x, is_ceiled);
  // A single window has no next one: otherwise scratch would grow with the stride.
  if (given.out_height == 1) given.stride_y = 1;
  if (given.out_width == 1) given.stride_x = 1;
  int64_t size = given.out_channels;
  for (const int64_t axis : {given.images, given.out_height, given.out_width})
    if (__builtin_mul_overflow(size, axis, &size) || size > kMostSize * kMostSize) return std::nullopt;
  return given;
}

/// Each pixel of the result is computed from the corresponding one of the input.
Convolution pixel_by_pixel(const Shape& in) {
  Convolution given = read(in);
  given.out_channels = given.channels;
  given.out_height = given.height;
  given.out_width = given.width;
  given.kernel_height = given.kernel_width = 1;
  return given;
}

/// The call, with its result as a separate image.
Call with_image(Convolution given) {
  given.out_pixel_stride = given.out_channels;
  return {given, channels_last(given.images, given.out_channels, given.out_height, given.out_width,
                               given.out_element)};
}

/// `given.in_element` is known.
void apply(Convolution& given, const Types& types) {
  given.element = types.products.value_or(given.in_element);
  given.out_element = types.result.value_or(given.element);
  for (const Element element : {given.element, given.out_element})
    if (!has_kernels(element)) throw std::invalid_argument("there are no kernels of this type here");
}

/// Whether a call can read its input as it is; only products and convolutions convert it.
bool reads_input(const Convolution& given) {
  if (given.in_element == given.element) return true;
  return given.in_element == Element::kFloat32 && rounds_input(given);
}

void apply(Convolution& given, const Epilogue& epilogue) {
  given.activation = epilogue.activation;
  given.low = epilogue.low;
  given.high = epilogue.high;
}

}  // namespace

std::optional<Call> convolution_of(const Shape& in, const Shape* summand, const Window& window,
                                   int64_t groups, Method method, const Epilogue& epilogue,
                                   const Types& types) {
  if (in.rank != kImageRank) return std::nullopt;
  const std::optional<Convolution> read = geometry(in, window, false);
  if (!read) return std::nullopt;
  Convolution given = *read;
  apply(given, types);
  if (!takes_groups(given.out_channels, given.channels, groups, given.element))
    throw std::invalid_argument("no such groups of channels");
  given.groups = groups;
  given.method = method;
  if (has_tiles(method) && !can_have_tiles(given)) throw std::invalid_argument("no such tiles");
  if (parts_of(method) > 0) check_unit(method, groups, given.channels, given.element);
  if (method == Method::kInt8) check_int8(groups, given.channels, given.element);
  apply(given, epilogue);
  if (given.channel_stride != 1 && !in.is_empty() && !takes_any_strides(given)) return std::nullopt;
  if (!reads_input(given) && !in.is_empty()) return std::nullopt;
  Call call = with_image(given);
  if (summand == nullptr) return call;
  if (summand->element != given.out_element || !apply_other(call.given, *summand, call.result))
    return std::nullopt;
  return call;
}

std::optional<Call> pool_of(const Shape& in, const Window& window, bool is_ceiled, const Types& types) {
  if (in.rank != kImageRank) return std::nullopt;
  const std::optional<Convolution> read = geometry(in, window, is_ceiled);
  if (!read) return std::nullopt;
  Convolution given = *read;
  given.out_channels = given.channels;
  if (given.channels < kLeastChannels) throw std::invalid_argument("too few channels");
  if (std::min(window.pad_y, window.pad_x) < 0 || window.pad_below != window.pad_y ||
      window.pad_behind != window.pad_x)
    throw std::invalid_argument("no such pool");
  if (given.channel_stride != 1 && !in.is_empty()) return std::nullopt;
  apply(given, types);
  if (given.element != given.in_element) throw std::invalid_argument("a pool multiplies nothing");
  return with_image(given);
}

namespace {

/// Rows along the last axis of a tensor.
struct Rows {
  int64_t count, step;  // step between rows
};

/// Nothing if they are not equidistant.
std::optional<Rows> rows_of(const Shape& in) {
  const size_t last = in.rank - 1;
  Rows rows{1, in.sizes[last]};
  for (size_t i = last; i-- > 0;) {
    if (in.sizes[i] == 1) continue;
    if (rows.count == 1) rows.step = in.strides[i];
    if (in.strides[i] != rows.count * rows.step && !in.is_empty()) return std::nullopt;
    rows.count *= in.sizes[i];
  }
  return rows;
}

/// The same number of contiguous rows, with this many elements.
Shape rows_like(const Shape& in, int64_t size) {
  Shape made = in;
  made.sizes[in.rank - 1] = size;
  lie_contiguously(made);
  return made;
}

}  // namespace

std::optional<Call> linear_of(const Shape& in, int64_t outputs, Method method, const Epilogue& epilogue,
                              const Types& types) {
  if (outputs < 1 || has_tiles(method)) throw std::invalid_argument("no such product");
  if (in.rank < 1) return std::nullopt;
  const size_t last = in.rank - 1;
  if (in.sizes[last] > 1 && in.strides[last] != 1 && !in.is_empty()) return std::nullopt;
  const std::optional<Rows> rows = rows_of(in);
  if (!rows) return std::nullopt;
  Call call{};
  call.result = rows_like(in, outputs);
  Convolution& given = call.given;
  given.in_element = in.element;
  apply(given, types);
  call.result.element = given.out_element;
  given.images = given.height = given.out_height = given.kernel_height = given.kernel_width = 1;
  given.stride_y = given.stride_x = given.dilation_y = given.dilation_x = given.channel_stride = 1;
  given.groups = 1;
  given.method = method;
  given.width = given.out_width = rows->count;
  given.channels = in.sizes[last];
  if (parts_of(method) > 0) check_unit(method, 1, given.channels, given.element);
  if (method == Method::kInt8) check_int8(1, given.channels, given.element);
  given.pixel_stride = rows->step;
  given.out_channels = given.out_pixel_stride = outputs;
  apply(given, epilogue);
  if (!reads_input(given) && !in.is_empty()) return std::nullopt;
  return call;
}

namespace {

/// Rows as images of one pixel.
std::optional<Shape> images_of_rows(const Shape& in) {
  const std::optional<Rows> rows = in.rank < 2 ? std::nullopt : rows_of(in);
  if (!rows) return std::nullopt;
  const size_t last = in.rank - 1;
  Shape images = channels_last(rows->count, in.sizes[last], 1, 1, in.element);
  images.strides = {rows->step, in.strides[last], rows->step, rows->step};
  return images;
}

/// `in` and `other` are rows.
std::optional<Call> pointwise_of_rows(const Shape& in, const Shape* other, Pointwise kind,
                                      const Epilogue& epilogue, const Types& types) {
  const bool are_alike = other == nullptr || (other->rank == in.rank && other->sizes == in.sizes);
  if (!are_alike || kind == Pointwise::kScale) throw std::invalid_argument("no such operands");
  const std::optional<Shape> images = images_of_rows(in);
  const std::optional<Shape> others = other == nullptr ? std::nullopt : images_of_rows(*other);
  if (!images || (other != nullptr && !others)) return std::nullopt;
  std::optional<Call> call =
      pointwise_of(*images, other == nullptr ? nullptr : &*others, kind, epilogue, types);
  if (!call) return call;
  call->result = rows_like(in, in.sizes[in.rank - 1]);
  call->result.element = call->given.out_element;
  return call;
}

}  // namespace

std::optional<Call> pointwise_of(const Shape& in, const Shape* other, Pointwise kind,
                                 const Epilogue& epilogue, const Types& types) {
  if (is_of_rows(in)) return pointwise_of_rows(in, other, kind, epilogue, types);
  if (in.rank != kImageRank) return std::nullopt;
  Convolution given = pixel_by_pixel(in);
  apply(given, epilogue);
  apply(given, types);
  if (given.element != given.in_element) throw std::invalid_argument("what is pointwise has no products");
  if (given.channel_stride != 1 && !in.is_empty()) return std::nullopt;
  Call call = with_image(given);
  const Shape wanted =
      kind == Pointwise::kScale ? channels_last(given.images, given.channels, 1, 1) : call.result;
  if ((other == nullptr) != (kind == Pointwise::kActivate)) throw std::invalid_argument("no such operands");
  if (other == nullptr) return call;
  if (other->element != in.element || !apply_other(call.given, *other, wanted)) return std::nullopt;
  return call;
}

std::optional<Call> shuffle_of(const Shape& in, int64_t groups) {
  if (in.rank != kImageRank) return std::nullopt;
  Convolution given = pixel_by_pixel(in);
  if (groups < 1 || given.channels % groups != 0) throw std::invalid_argument("no such groups of channels");
  given.groups = groups;
  if (given.channel_stride != 1 && !in.is_empty()) return std::nullopt;
  return with_image(given);
}

int64_t write_into(Call& call, const Shape& room, int64_t first_channel) {
  const Shape& own = call.result;
  const int64_t channels = room.rank == kImageRank ? room.sizes[1] : -1;
  if (first_channel < 0 || first_channel + call.given.out_channels > channels ||
      room.element != own.element ||
      !has_pixels(room, channels_last(own.sizes[0], channels, own.sizes[2], own.sizes[3]),
                  pixel_stride_of(room, channels)))
    throw std::invalid_argument("the result does not fit into the room for it");
  call.given.out_pixel_stride = pixel_stride_of(room, channels);
  return first_channel;
}

}  // namespace rlopt::kernels
