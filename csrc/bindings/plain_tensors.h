// Plain CPU tensors of a dtype that has kernels: read in place, and allocated by PyTorch.
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>

#include "bindings/bind.h"
#include "bindings/dlpack.h"
#include "kernels/openmp.h"
#include "kernels/shapes.h"

namespace rlopt {

/// Sizes, strides and address of a tensor.
struct View {
  kernels::Shape shape;
  char* data;
};

/// Reads plain CPU tensors of one dtype, or of any that has kernels, and makes new ones.
class PlainTensors {
 public:
  /// `example` is such a tensor; ValueError if this PyTorch cannot be read, or there are no kernels for its
  /// dtype.
  explicit PlainTensors(PyObject* example) {
    const std::optional<dlpack::Tensor> read = reader_.read(example);
    const auto* const found =
        std::find_if(kernels::kElements.begin(), kernels::kElements.end(),
                     [&](const kernels::ElementFacts& each) { return read && read->type == type_of(each); });
    if (found == kernels::kElements.end()) throw py::value_error("there are no kernels for such numbers");
    element_ = static_cast<kernels::Element>(found - kernels::kElements.begin());
    if (!kernels::has_kernels(element_)) throw py::value_error("there are no such kernels on this processor");
    const py::module_ torch = py::module_::import("torch");
    empty_strided_ = torch.attr("empty_strided");
    get_num_threads_ = torch.attr("get_num_threads");
    for (size_t i = 0; i < dtypes_.size(); ++i) {
      dtypes_[i] = torch.attr(kernels::kElements[i].name);
      has_kernels_[i] = kernels::has_kernels(static_cast<kernels::Element>(i));
    }
  }

  /// Nothing for anything but a plain tensor of this dtype.
  std::optional<View> view(PyObject* object) const { return view(object, element_); }

  std::optional<View> view(PyObject* object, kernels::Element element) const {
    std::optional<View> found = view_of_any(object);
    if (found && found->shape.element != element) return std::nullopt;
    return found;
  }

  /// Of any dtype that has kernels here.
  std::optional<View> view_of_any(PyObject* object) const {
    if (Py_TYPE(object) != reader_.type()) return std::nullopt;
    const std::optional<dlpack::Tensor> read = reader_.read(object);
    if (!read || read->device.type != dlpack::kCpu || read->rank < 1 ||
        read->rank > static_cast<int32_t>(kernels::kMostAxes))
      return std::nullopt;
    size_t element = 0;
    while (element < has_kernels_.size() && read->type != type_of(kernels::kElements[element])) ++element;
    if (element == has_kernels_.size() || !has_kernels_[element]) return std::nullopt;
    View found{};
    found.shape.rank = static_cast<size_t>(read->rank);
    found.shape.element = static_cast<kernels::Element>(element);
    std::copy(read->sizes, read->sizes + read->rank, found.shape.sizes.begin());
    std::copy(read->strides, read->strides + read->rank, found.shape.strides.begin());
    found.data = read->first();
    if (found.data == nullptr && !found.shape.is_empty()) return std::nullopt;  // zeros without memory
    return found;
  }

  kernels::Element element() const { return element_; }

  /// The elements of a contiguous float32 tensor with `count` elements.
  float* floats(PyObject* object, size_t count) const {
    const std::optional<View> found = view(object, kernels::Element::kFloat32);
    if (!found) throw py::type_error("a plain tensor of float32 is expected");
    size_t elements = 1;
    for (size_t i = 0; i < found->shape.rank; ++i) elements *= static_cast<size_t>(found->shape.sizes[i]);
    if (elements != count)
      throw py::value_error("a tensor of " + std::to_string(count) + " elements is expected, not of " +
                            std::to_string(elements));
    return reinterpret_cast<float*>(found->data);  // NOLINT: what it is
  }

  /// The number of threads that an operator of PyTorch would use here.
  int num_threads() const { return kernels::is_in_parallel() ? 1 : get_num_threads_().cast<int>(); }

  /// A new tensor with these sizes and strides.
  py::object make(const kernels::Shape& shape, char*& data) const {
    // On the CPU even if `torch.set_default_device` names another device.
    static PyObject* const names = py::make_tuple("dtype", "device").release().ptr();
    static PyObject* const cpu = py::str("cpu").release().ptr();
    const py::tuple sizes = tuple_of(shape.sizes, shape.rank);
    const py::tuple strides = tuple_of(shape.strides, shape.rank);
    const py::object& dtype = dtypes_[at(shape.element)];
    const std::array<PyObject*, 4> given{sizes.ptr(), strides.ptr(), dtype.ptr(), cpu};
    auto made =
        py::reinterpret_steal<py::object>(PyObject_Vectorcall(empty_strided_.ptr(), given.data(), 2, names));
    if (!made) throw py::error_already_set();
    const std::optional<View> found = view(made.ptr(), shape.element);
    if (!found) throw py::value_error("this PyTorch cannot be read from C++");
    data = found->data;
    return made;
  }

 private:
  static dlpack::Type type_of(const kernels::ElementFacts& of) {
    const bool is_bfloat = std::string_view(of.name).starts_with("bfloat");
    return {is_bfloat ? dlpack::kBfloat : dlpack::kFloat, static_cast<uint8_t>(8 * of.bytes), 1};
  }

  template <class Numbers>
  static py::tuple tuple_of(const Numbers& numbers, size_t count) {
    py::tuple made(count);
    for (size_t i = 0; i < count; ++i) made[i] = numbers[i];
    return made;
  }

  dlpack::Reader reader_;
  kernels::Element element_ = kernels::Element::kFloat32;
  py::object empty_strided_, get_num_threads_;
  std::array<py::object, kernels::kElements.size()> dtypes_;
  std::array<bool, kernels::kElements.size()> has_kernels_{};
};

}  // namespace rlopt
