// Convolutions, products and pools of csrc/kernels for tensors: a call takes tensor objects and gives one.
#include <algorithm>
#include <array>
#include <optional>
#include <string>

#include "bindings/bind.h"
#include "bindings/torch_functions.h"
#include "kernels/convolution.h"

namespace rlopt {

namespace {

constexpr size_t kRank = 4;
constexpr size_t kMostAxes = 8;
using Sizes = std::array<int64_t, kRank>;

/// Sizes and strides of a tensor, and where it lies. They belong to the tensor.
struct View {
  size_t rank;
  const int64_t *sizes, *strides;
  float* data;
};

/// Whether it has no element: then its strides say nothing.
bool is_empty(const View& tensor) {
  return std::any_of(tensor.sizes, tensor.sizes + tensor.rank, [](int64_t size) { return size == 0; });
}

/// Reads plain tensors of float32 on the CPU, and makes new ones.
class Tensors {
 public:
  /// The example is such a tensor; ValueError where this PyTorch cannot be read.
  Tensors(PyObject* example, uintptr_t implementation)
      : type_(Py_TYPE(example)), offset_(tensor_offset(example, implementation)) {
    if (!kernels::has_kernels()) throw py::value_error("there are no kernels here");
    if (!torch_.has_new()) throw py::value_error("this PyTorch cannot be read from C++");
  }

  /// Nothing for what is no plain tensor. Its type of numbers is what the caller says.
  std::optional<View> view(PyObject* object) const {
    if (Py_TYPE(object) != type_) return std::nullopt;
    const void* tensor = tensor_at(object, offset_);
    int64_t rank = -1;
    View found{};
    void* data = nullptr;
    if (torch_.dim(tensor, &rank) != 0 || rank < 1 || rank > static_cast<int64_t>(kMostAxes) ||
        torch_.sizes(tensor, static_cast<void*>(&found.sizes)) != 0 ||
        torch_.strides(tensor, static_cast<void*>(&found.strides)) != 0 ||
        torch_.data_ptr(tensor, static_cast<void*>(&data)) != 0)
      return std::nullopt;
    found.rank = static_cast<size_t>(rank);
    found.data = static_cast<float*>(data);
    if (data == nullptr && !is_empty(found)) return std::nullopt;  // zeros that are nowhere
    return found;
  }

  /// The elements of a contiguous tensor, of which there have to be so many.
  float* data(PyObject* object, size_t count) const {
    const std::optional<View> found = view(object);
    if (!found) throw py::type_error("a plain tensor is expected");
    size_t elements = 1;
    for (size_t i = 0; i < found->rank; ++i) elements *= static_cast<size_t>(found->sizes[i]);
    if (elements != count)
      throw py::value_error("a tensor of " + std::to_string(count) + " elements is expected, not of " +
                            std::to_string(elements));
    return found->data;
  }

  /// As many as an operator of PyTorch would use here.
  int num_threads() const { return torch_.is_in_parallel() ? 1 : torch_.num_threads(); }

  /// A new tensor with these sizes and strides.
  py::object make(size_t rank, const int64_t* sizes, const int64_t* strides, float*& data) const {
    void* made = nullptr;
    void* place = nullptr;
    constexpr int32_t kCpu = 0;
    if (torch_.empty(static_cast<int64_t>(rank), sizes, strides, torch_.float32(), kCpu, 0, &made) != 0)
      throw std::bad_alloc();
    auto object = py::reinterpret_steal<py::object>(torch_.wrap(made));
    const bool is_read = torch_.data_ptr(made, static_cast<void*>(&place)) == 0;
    torch_.forget(made);
    if (!object) throw py::error_already_set();
    if (!is_read) throw py::value_error("this PyTorch cannot be read from C++");
    data = static_cast<float*>(place);
    return object;
  }

 private:
  const TorchFunctions& torch_ = TorchFunctions::loaded();
  PyTypeObject* type_;
  size_t offset_;
};

int64_t integer(const py::tuple& items, Py_ssize_t at) {
  const int64_t value = PyLong_AsLongLong(PyTuple_GET_ITEM(items.ptr(), at));
  if (value == -1 && PyErr_Occurred() != nullptr) throw py::error_already_set();
  return value;
}

float number(const py::tuple& items, Py_ssize_t at) {
  const double value = PyFloat_AsDouble(PyTuple_GET_ITEM(items.ptr(), at));
  if (value == -1.0 && PyErr_Occurred() != nullptr) throw py::error_already_set();
  return static_cast<float>(value);
}

Sizes channels_last(const Sizes& sizes) {
  return {sizes[1] * sizes[2] * sizes[3], 1, sizes[1] * sizes[3], sizes[1]};
}

/// Whether a tensor has these sizes, and its pixels follow on each other as many elements apart.
bool has_pixels(const View& image, const Sizes& sizes, int64_t pixel_stride) {
  const Sizes strides{sizes[2] * sizes[3] * pixel_stride, 1, sizes[3] * pixel_stride, pixel_stride};
  if (image.rank != kRank || !std::equal(sizes.begin(), sizes.end(), image.sizes)) return false;
  if (is_empty(image)) return true;
  for (size_t i = 0; i < kRank; ++i)
    if (sizes[i] > 1 && image.strides[i] != strides[i]) return false;
  return true;
}

/// Number of windows along an axis. A pool may end with one that is not whole, as ATen has it.
int64_t windows_of(int64_t size, int64_t padding, int64_t dilation, int64_t kernel, int64_t stride,
                   bool is_ceiled) {
  const int64_t room = size + 2 * padding - dilation * (kernel - 1) - 1 + (is_ceiled ? stride - 1 : 0);
  int64_t count = (room >= 0 ? room / stride : -((stride - 1 - room) / stride)) + 1;
  if (is_ceiled && (count - 1) * stride >= size + padding) --count;  // begins inside, or before the image
  return std::max<int64_t>(count, 0);
}

/// The input and the windows over it, from out channels, kernel, stride, padding, dilation (two each).
kernels::Convolution geometry(const View& in, const py::tuple& numbers, bool is_ceiled) {
  kernels::Convolution given{};
  given.images = in.sizes[0];
  given.channels = in.sizes[1];
  given.height = in.sizes[2];
  given.width = in.sizes[3];
  given.image_stride = in.strides[0];
  given.channel_stride = in.sizes[1] > 1 ? in.strides[1] : 1;
  given.row_stride = in.strides[2];
  given.pixel_stride = in.strides[3];
  given.out_channels = integer(numbers, 0);
  given.kernel_height = integer(numbers, 1);
  given.kernel_width = integer(numbers, 2);
  given.stride_y = integer(numbers, 3);
  given.stride_x = integer(numbers, 4);
  given.pad_y = integer(numbers, 5);
  given.pad_x = integer(numbers, 6);
  given.dilation_y = integer(numbers, 7);
  given.dilation_x = integer(numbers, 8);
  if (std::min({given.out_channels, given.kernel_height, given.kernel_width, given.stride_y, given.stride_x,
                given.dilation_y, given.dilation_x}) < 1 ||
      std::min(given.pad_y, given.pad_x) < 0)
    throw py::value_error("no such window");
  if (given.channels > kernels::kMaxChannels) throw py::value_error("too many channels");
  given.out_height =
      windows_of(given.height, given.pad_y, given.dilation_y, given.kernel_height, given.stride_y, is_ceiled);
  given.out_width =
      windows_of(given.width, given.pad_x, given.dilation_x, given.kernel_width, given.stride_x, is_ceiled);
  return given;
}

kernels::Activation activation_of(const py::tuple& numbers, Py_ssize_t at) {
  const int64_t activation = integer(numbers, at);
  if (activation < 0 || activation >= kernels::kNumActivations) throw py::value_error("no such activation");
  return static_cast<kernels::Activation>(activation);
}

void check_length(const py::tuple& numbers, Py_ssize_t length) {
  const Py_ssize_t given = PyTuple_GET_SIZE(numbers.ptr());
  if (given != length)
    throw py::value_error(std::to_string(length) + " numbers are expected, not " + std::to_string(given));
}

/// The packed weight of such a convolution.
const float* weight_of(const Tensors& tensors, const py::object& packed, const kernels::Convolution& given) {
  return tensors.data(packed.ptr(), kernels::packed_size(given.out_channels, given.channels, given.num_taps(),
                                                         given.is_depthwise));
}

/// A new image for the result, or the channels of `room` from `first_channel` on.
py::object place_for(const Tensors& tensors, kernels::Convolution& given, const py::object& room,
                     int64_t first_channel, float*& out) {
  const Sizes sizes{given.images, given.out_channels, given.out_height, given.out_width};
  if (room.is_none()) {
    const Sizes strides = channels_last(sizes);
    given.out_pixel_stride = given.out_channels;
    return tensors.make(kRank, sizes.data(), strides.data(), out);
  }
  const std::optional<View> whole = tensors.view(room.ptr());
  if (!whole || whole->rank != kRank) throw py::value_error("the room for a result is no image");
  const int64_t channels = whole->sizes[1];
  if (first_channel < 0 || first_channel + given.out_channels > channels ||
      !has_pixels(*whole, {sizes[0], channels, sizes[2], sizes[3]}, channels))
    throw py::value_error("the result does not fit into the room for it");
  given.out_pixel_stride = channels;
  out = whole->data + first_channel;
  return room;
}

/// None where an image does not lie as the kernels read it, or is no plain tensor.
py::object convolve(const Tensors& tensors, const py::object& x, const py::object& packed,
                    const py::object& summand, const py::tuple& numbers, const py::object& room,
                    int64_t first_channel) {
  const std::optional<View> in = tensors.view(x.ptr());
  if (!in || in->rank != kRank) return py::none();
  check_length(numbers, 13);
  kernels::Convolution given = geometry(*in, numbers, false);
  given.is_depthwise = integer(numbers, 9) != 0;
  if (given.is_depthwise && (given.channels != given.out_channels || given.channels < kernels::kMinChannels))
    throw py::value_error("no such depthwise convolution");
  given.activation = activation_of(numbers, 10);
  given.low = number(numbers, 11);
  given.high = number(numbers, 12);
  if (given.channel_stride != 1 && !is_empty(*in) && !kernels::takes_any_strides(given)) return py::none();
  const float* added = nullptr;
  if (!summand.is_none()) {
    const std::optional<View> other = tensors.view(summand.ptr());
    const Sizes sizes{given.images, given.out_channels, given.out_height, given.out_width};
    if (!other || !has_pixels(*other, sizes, given.out_channels)) return py::none();
    added = other->data;
  }
  const float* const weight = weight_of(tensors, packed, given);
  float* out = nullptr;
  py::object result = place_for(tensors, given, room, first_channel, out);
  if (given.images * given.out_channels * given.out_height * given.out_width > 0) {
    const py::gil_scoped_release release;
    kernels::convolve(given, in->data, weight, added, out, tensors.num_threads());
  }
  return result;
}

/// None where the image does not lie as the kernels read it, or is no plain tensor.
py::object pool(const Tensors& tensors, const py::object& x, const py::tuple& numbers, const py::object& room,
                int64_t first_channel) {
  const std::optional<View> in = tensors.view(x.ptr());
  if (!in || in->rank != kRank) return py::none();
  check_length(numbers, 11);
  kernels::Convolution given = geometry(*in, numbers, integer(numbers, 9) != 0);
  given.out_channels = given.channels;
  if (given.channels < kernels::kMinChannels) throw py::value_error("too few channels");
  const int64_t kind = integer(numbers, 10);
  if (kind < 0 || kind > static_cast<int64_t>(kernels::Pool::kMeanOfInside))
    throw py::value_error("no such pool");
  if (given.channel_stride != 1 && !is_empty(*in)) return py::none();
  float* out = nullptr;
  py::object result = place_for(tensors, given, room, first_channel, out);
  if (given.images * given.out_channels * given.out_height * given.out_width > 0) {
    const py::gil_scoped_release release;
    kernels::pool(given, static_cast<kernels::Pool>(kind), in->data, out, tensors.num_threads());
  }
  return result;
}

/// x[..., in] to [..., out], dense; None where rows of x are not equally far apart, or it is no plain tensor.
py::object linear(const Tensors& tensors, const py::object& x, const py::object& packed,
                  const py::tuple& numbers) {
  const std::optional<View> in = tensors.view(x.ptr());
  if (!in) return py::none();
  check_length(numbers, 4);
  std::array<int64_t, kMostAxes> sizes{}, strides{};
  const size_t last = in->rank - 1;
  const int64_t outputs = integer(numbers, 0);
  if (in->sizes[last] > 1 && in->strides[last] != 1 && !is_empty(*in)) return py::none();
  sizes[last] = outputs;
  strides[last] = 1;
  int64_t rows = 1, step = in->sizes[last], stride = outputs;  // from each row of the input to the next
  for (size_t i = last; i-- > 0;) {
    sizes[i] = in->sizes[i];
    strides[i] = stride;
    stride *= std::max<int64_t>(sizes[i], 1);
    if (sizes[i] == 1) continue;
    if (rows == 1) step = in->strides[i];
    if (in->strides[i] != rows * step && !is_empty(*in)) return py::none();
    rows *= sizes[i];
  }
  kernels::Convolution given{};
  given.images = given.height = given.out_height = given.kernel_height = given.kernel_width = 1;
  given.stride_y = given.stride_x = given.dilation_y = given.dilation_x = given.channel_stride = 1;
  given.width = given.out_width = rows;
  given.channels = in->sizes[last];
  given.pixel_stride = step;
  if (outputs < 1) throw py::value_error("no such product");
  given.out_channels = given.out_pixel_stride = outputs;
  given.activation = activation_of(numbers, 1);
  given.low = number(numbers, 2);
  given.high = number(numbers, 3);
  const float* const weight = weight_of(tensors, packed, given);
  float* out = nullptr;
  py::object result = tensors.make(in->rank, sizes.data(), strides.data(), out);
  if (rows * outputs > 0) {
    const py::gil_scoped_release release;
    kernels::convolve(given, in->data, weight, nullptr, out, tensors.num_threads());
  }
  return result;
}

}  // namespace

void bind_kernels(py::module_& m) {
  m.def("kernel_instructions", &kernels::instructions,
        "\"avx512\" or \"avx2\": what the kernels for convolutions use here; \"\" where there are none.");
  m.attr("MOST_KERNEL_CHANNELS") = kernels::kMaxChannels;
  m.attr("FEW_KERNEL_CHANNELS") = kernels::kFewChannels;
  m.attr("LEAST_KERNEL_CHANNELS") = kernels::kMinChannels;
  py::class_<Tensors>(m, "ImageKernels",
                      "Kernels for plain float32 tensors on the CPU; ValueError where this PyTorch cannot be "
                      "read.")
      .def(py::init([](const py::object& example, uintptr_t implementation) {
             return Tensors(example.ptr(), implementation);
           }),
           py::arg("example"), py::arg("implementation"))
      .def(
          "packed_size",
          [](const Tensors&, int64_t out_channels, int64_t in_channels, int64_t num_taps, bool is_depthwise) {
            return kernels::packed_size(out_channels, in_channels, num_taps, is_depthwise);
          },
          py::arg("out_channels"), py::arg("in_channels"), py::arg("num_taps"), py::arg("is_depthwise"),
          "Number of floats of a packed weight.")
      .def(
          "pack",
          [](const Tensors& tensors, const py::object& weight, const py::object& bias, int64_t out_channels,
             int64_t in_channels, int64_t num_taps, bool is_depthwise, const py::object& packed) {
            const auto outputs = static_cast<size_t>(out_channels);
            const size_t terms =
                static_cast<size_t>(is_depthwise ? 1 : in_channels) * static_cast<size_t>(num_taps);
            kernels::pack(tensors.data(weight.ptr(), outputs * terms),
                          bias.is_none() ? nullptr : tensors.data(bias.ptr(), outputs), out_channels,
                          in_channels, num_taps, is_depthwise,
                          tensors.data(packed.ptr(), kernels::packed_size(out_channels, in_channels, num_taps,
                                                                          is_depthwise)));
          },
          py::arg("weight"), py::arg("bias"), py::arg("out_channels"), py::arg("in_channels"),
          py::arg("num_taps"), py::arg("is_depthwise"), py::arg("packed"),
          "Write the packed form of contiguous tensors.")
      .def("convolve", &convolve, py::arg("x"), py::arg("packed"), py::arg("summand"), py::arg("numbers"),
           py::arg("room") = py::none(), py::arg("first_channel") = 0,
           "The result in channels_last, or the image into which it was written; None where x or the summand "
           "does not lie so or is no plain tensor.")
      .def("pool", &pool, py::arg("x"), py::arg("numbers"), py::arg("room") = py::none(),
           py::arg("first_channel") = 0, "A pool, in the same way.")
      .def("linear", &linear, py::arg("x"), py::arg("packed"), py::arg("numbers"),
           "The product of the last axis; None where rows are not equally far apart, or x is no plain "
           "tensor.");
}

}  // namespace rlopt
