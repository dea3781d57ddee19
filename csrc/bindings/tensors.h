// Addresses and strides of tensors, looked at in C++ at every call.
#pragma once

#include <cstdint>
#include <vector>

#include "bindings/bind.h"
#include "bindings/dlpack.h"

namespace rlopt {

/// Where tensor objects lay, and how, when this was made. Keeps none of them alive.
class TensorPlaces {
 public:
  /// ValueError where one of them has no plain memory, or this PyTorch does not show it.
  explicit TensorPlaces(const py::sequence& tensors);

  /// Whether these are the same objects, of the same type of numbers, sizes and strides, at the same
  /// addresses.
  bool is_of(const py::sequence& tensors) const;

 private:
  struct Place {
    const PyObject* object;
    const char* address;
    dlpack::Type type;
    int32_t rank;
    size_t layout;  // where its sizes begin among all, followed by its strides
  };

  bool is_at(const dlpack::Tensor& tensor, const Place& place) const;

  dlpack::Reader reader_;
  std::vector<Place> places_;
  std::vector<int64_t> layouts_;
};

}  // namespace rlopt
