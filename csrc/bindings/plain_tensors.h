// Plain tensors of float32 or bfloat16 on the CPU, read and made without Python's attributes.
#pragma once

#include <new>
#include <optional>
#include <string>

#include "bindings/bind.h"
#include "bindings/torch_functions.h"
#include "kernels/shapes.h"

namespace rlopt {

/// Sizes and strides of a tensor, and where it lies.
struct View {
  kernels::Shape shape;
  char* data;
};

/// Reads plain tensors of one type of numbers on the CPU, and makes new ones.
class PlainTensors {
 public:
  /// The example is such a tensor; ValueError where this PyTorch cannot be read, or there are no kernels for
  /// its type of numbers.
  PlainTensors(PyObject* example, uintptr_t implementation)
      : type_(Py_TYPE(example)), offset_(tensor_offset(example, implementation)) {
    if (!torch_.has_new()) throw py::value_error("this PyTorch cannot be read from C++");
    const int32_t dtype = dtype_of(tensor_at(example, offset_));
    if (dtype != torch_.float32() && dtype != torch_.bfloat16())
      throw py::value_error("kernels are for float32 or bfloat16");
    element_ = dtype == torch_.float32() ? kernels::Element::kFloat32 : kernels::Element::kBfloat16;
    if (!kernels::has_kernels(element_)) throw py::value_error("there are no such kernels on this processor");
  }

  /// Nothing for what is no plain tensor of such numbers.
  std::optional<View> view(PyObject* object) const { return view(object, element_); }

  std::optional<View> view(PyObject* object, kernels::Element element) const {
    if (Py_TYPE(object) != type_) return std::nullopt;
    const void* tensor = tensor_at(object, offset_);
    int64_t rank = -1;
    const int64_t *sizes = nullptr, *strides = nullptr;
    void* data = nullptr;
    if (dtype_of(tensor) != number_of(element) || torch_.dim(tensor, &rank) != 0 || rank < 1 ||
        rank > static_cast<int64_t>(kernels::kMostAxes) ||
        torch_.sizes(tensor, static_cast<void*>(&sizes)) != 0 ||
        torch_.strides(tensor, static_cast<void*>(&strides)) != 0 ||
        torch_.data_ptr(tensor, static_cast<void*>(&data)) != 0)
      return std::nullopt;
    View found{};
    found.shape.rank = static_cast<size_t>(rank);
    found.shape.element = element;
    std::copy(sizes, sizes + rank, found.shape.sizes.begin());
    std::copy(strides, strides + rank, found.shape.strides.begin());
    found.data = static_cast<char*>(data);
    if (data == nullptr && !found.shape.is_empty()) return std::nullopt;  // zeros that are nowhere
    return found;
  }

  kernels::Element element() const { return element_; }

  /// The elements of a contiguous tensor of float32, of which there have to be so many.
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

  /// As many as an operator of PyTorch would use here.
  int num_threads() const { return torch_.is_in_parallel() ? 1 : torch_.num_threads(); }

  /// A new tensor with these sizes and strides.
  py::object make(const kernels::Shape& shape, char*& data) const {
    void* made = nullptr;
    void* place = nullptr;
    constexpr int32_t kCpu = 0;
    if (torch_.empty(static_cast<int64_t>(shape.rank), shape.sizes.data(), shape.strides.data(),
                     number_of(shape.element), kCpu, 0, &made) != 0)
      throw std::bad_alloc();
    auto object = py::reinterpret_steal<py::object>(torch_.wrap(made));
    const bool is_read = torch_.data_ptr(made, static_cast<void*>(&place)) == 0;
    torch_.forget(made);
    if (!object) throw py::error_already_set();
    if (!is_read) throw py::value_error("this PyTorch cannot be read from C++");
    data = static_cast<char*>(place);
    return object;
  }

 private:
  /// PyTorch's number of a type.
  int32_t number_of(kernels::Element element) const {
    return element == kernels::Element::kFloat32 ? torch_.float32() : torch_.bfloat16();
  }

  int32_t dtype_of(const void* tensor) const {
    int32_t dtype = -1;
    return torch_.dtype(tensor, &dtype) == 0 ? dtype : -1;
  }

  const TorchFunctions& torch_ = TorchFunctions::loaded();
  PyTypeObject* type_;
  size_t offset_;
  kernels::Element element_ = kernels::Element::kFloat32;
};

}  // namespace rlopt
