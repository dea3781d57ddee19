// Convolutions of csrc/kernels for tensors. A call takes tensor objects and gives a new one.
#include <array>
#include <optional>

#include "bindings/bind.h"
#include "bindings/torch_functions.h"
#include "kernels/convolution.h"
#include "kernels/openmp.h"

namespace rlopt {

namespace {

constexpr int64_t kRank = 4;
using Sizes = std::array<int64_t, kRank>;

/// Sizes and strides of an image, and where it lies.
struct Image {
  Sizes sizes, strides;
  float* data;
};

/// Reads plain tensors of float32 on the CPU, and makes new ones.
class Tensors {
 public:
  /// The example is such a tensor; ValueError where this PyTorch cannot be read.
  Tensors(PyObject* example, uintptr_t implementation)
      : type_(Py_TYPE(example)), offset_(tensor_offset(example, implementation)) {
    if (!torch_.has_new()) throw py::value_error("this PyTorch cannot be read from C++");
  }

  /// Nothing for what is no plain tensor. Its type of numbers is what the caller says.
  std::optional<Image> image(PyObject* object) const {
    if (Py_TYPE(object) != type_) return std::nullopt;
    const void* tensor = tensor_at(object, offset_);
    int64_t dim = -1;
    const int64_t *sizes = nullptr, *strides = nullptr;
    Image found{};
    void* data = nullptr;
    if (torch_.dim(tensor, &dim) != 0 || dim != kRank ||
        torch_.sizes(tensor, static_cast<void*>(&sizes)) != 0 ||
        torch_.strides(tensor, static_cast<void*>(&strides)) != 0 ||
        torch_.data_ptr(tensor, static_cast<void*>(&data)) != 0)
      return std::nullopt;
    std::copy_n(sizes, kRank, found.sizes.begin());
    std::copy_n(strides, kRank, found.strides.begin());
    found.data = static_cast<float*>(data);
    return found;
  }

  float* data(PyObject* object) const {
    void* data = nullptr;
    if (Py_TYPE(object) != type_ ||
        torch_.data_ptr(tensor_at(object, offset_), static_cast<void*>(&data)) != 0)
      throw py::type_error("a plain tensor is expected");
    return static_cast<float*>(data);
  }

  /// A new image in channels_last.
  py::object make(const Sizes& sizes, float*& data) const {
    const Sizes strides{sizes[1] * sizes[2] * sizes[3], 1, sizes[1] * sizes[3], sizes[1]};
    void* made = nullptr;
    void* place = nullptr;
    constexpr int32_t kCpu = 0;
    if (torch_.empty(kRank, sizes.data(), strides.data(), torch_.float32(), kCpu, 0, &made) != 0)
      throw std::bad_alloc();
    auto object = py::reinterpret_steal<py::object>(torch_.wrap(made));
    if (torch_.data_ptr(made, static_cast<void*>(&place)) != 0) place = nullptr;
    torch_.forget(made);
    if (!object) throw py::error_already_set();
    data = static_cast<float*>(place);
    return object;
  }

 private:
  const TorchFunctions& torch_ = TorchFunctions::loaded();
  PyTypeObject* type_;
  size_t offset_;
};

/// What a call needs beside its tensors.
struct Window {
  int64_t out_channels, kernel_height, kernel_width;
  std::array<int64_t, 2> stride, padding, dilation;
  bool is_depthwise;
  kernels::Activation activation;
  float low, high;
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

Window window_of(const py::tuple& items) {
  constexpr Py_ssize_t kItems = 13;
  if (PyTuple_GET_SIZE(items.ptr()) != kItems) throw py::value_error("a window has 13 numbers");
  const int64_t activation = integer(items, 10);
  if (activation < 0 || activation >= kernels::kNumActivations) throw py::value_error("no such activation");
  return {integer(items, 0),
          integer(items, 1),
          integer(items, 2),
          {integer(items, 3), integer(items, 4)},
          {integer(items, 5), integer(items, 6)},
          {integer(items, 7), integer(items, 8)},
          integer(items, 9) != 0,
          static_cast<kernels::Activation>(activation),
          number(items, 11),
          number(items, 12)};
}

int64_t outputs_of(int64_t size, int64_t padding, int64_t dilation, int64_t kernel, int64_t stride) {
  const int64_t room = size + 2 * padding - dilation * (kernel - 1) - 1;
  return room < 0 ? 0 : room / stride + 1;
}

bool is_dense_image(const Image& image, const Sizes& sizes) {
  const Sizes strides{sizes[1] * sizes[2] * sizes[3], 1, sizes[1] * sizes[3], sizes[1]};
  for (size_t i = 0; i < sizes.size(); ++i)
    if (image.sizes[i] != sizes[i] || (sizes[i] > 1 && image.strides[i] != strides[i])) return false;
  return true;
}

/// None where an image does not lie as the kernels read it, or is no plain tensor.
py::object convolve(const Tensors& tensors, const py::object& x, const py::object& packed,
                    const py::object& summand, const py::tuple& numbers) {
  const std::optional<Image> in = tensors.image(x.ptr());
  if (!in || (in->sizes[1] > 1 && in->strides[1] != 1)) return py::none();
  const Window window = window_of(numbers);
  const int64_t height =
      outputs_of(in->sizes[2], window.padding[0], window.dilation[0], window.kernel_height, window.stride[0]);
  const int64_t width =
      outputs_of(in->sizes[3], window.padding[1], window.dilation[1], window.kernel_width, window.stride[1]);
  const Sizes sizes{in->sizes[0], window.out_channels, height, width};
  const float* added = nullptr;
  if (!summand.is_none()) {
    const std::optional<Image> other = tensors.image(summand.ptr());
    if (!other || !is_dense_image(*other, sizes)) return py::none();
    added = other->data;
  }
  const float* const weight = tensors.data(packed.ptr());
  float* out = nullptr;
  py::object result = tensors.make(sizes, out);
  const kernels::Convolution given{
      .images = sizes[0],
      .height = in->sizes[2],
      .width = in->sizes[3],
      .channels = in->sizes[1],
      .image_stride = in->strides[0],
      .row_stride = in->strides[2],
      .pixel_stride = in->strides[3],
      .out_height = height,
      .out_width = width,
      .out_channels = window.out_channels,
      .kernel_height = window.kernel_height,
      .kernel_width = window.kernel_width,
      .stride_y = window.stride[0],
      .stride_x = window.stride[1],
      .pad_y = window.padding[0],
      .pad_x = window.padding[1],
      .dilation_y = window.dilation[0],
      .dilation_x = window.dilation[1],
      .is_depthwise = window.is_depthwise,
      .activation = window.activation,
      .low = window.low,
      .high = window.high,
  };
  if (sizes[0] * sizes[1] * height * width > 0) {
    const py::gil_scoped_release release;
    kernels::convolve(given, in->data, weight, added, out, kernels::num_threads());
  }
  return result;
}

}  // namespace

void bind_kernels(py::module_& m) {
  m.def("kernel_instructions", &kernels::instructions,
        "\"avx512\" or \"avx2\": what the kernels for convolutions use here; \"\" where there are none.");
  m.def("packed_convolution_size", &kernels::packed_size, py::arg("out_channels"), py::arg("in_channels"),
        py::arg("num_taps"), py::arg("is_depthwise"), "Number of floats of a packed weight.");
  m.attr("MOST_KERNEL_CHANNELS") = kernels::kMaxChannels;
  py::class_<Tensors>(m, "ImageKernels",
                      "Kernels for plain float32 tensors on the CPU; ValueError where this PyTorch cannot be "
                      "read.")
      .def(py::init([](const py::object& example, uintptr_t implementation) {
             return Tensors(example.ptr(), implementation);
           }),
           py::arg("example"), py::arg("implementation"))
      .def(
          "pack",
          [](const Tensors& tensors, const py::object& weight, const py::object& bias, int64_t out_channels,
             int64_t in_channels, int64_t num_taps, bool is_depthwise, const py::object& packed) {
            kernels::pack(tensors.data(weight.ptr()), bias.is_none() ? nullptr : tensors.data(bias.ptr()),
                          out_channels, in_channels, num_taps, is_depthwise, tensors.data(packed.ptr()));
          },
          py::arg("weight"), py::arg("bias"), py::arg("out_channels"), py::arg("in_channels"),
          py::arg("num_taps"), py::arg("is_depthwise"), py::arg("packed"),
          "Write the packed form of contiguous tensors.")
      .def("convolve", &convolve, py::arg("x"), py::arg("packed"), py::arg("summand"), py::arg("numbers"),
           "The result in channels_last; None where x or the summand does not lie so or is no plain tensor.");
}

}  // namespace rlopt
