// Addresses and strides of tensors, checked in C++ at every call.
#pragma once

#include <cstdint>
#include <vector>

#include "bindings/bind.h"
#include "bindings/dlpack.h"

namespace rlopt {

/// The addresses and layouts of tensor objects at construction. Does not keep them alive.
class TensorPlaces {
 public:
  /// ValueError if one of them has no plain memory, or this PyTorch does not expose it.
  explicit TensorPlaces(const py::sequence& tensors);

  /// Whether these are the same objects, with the same dtype, sizes, strides and addresses.
  bool is_of(const py::sequence& tensors) const;

 private:
  struct Place {
    const PyObject* object;
    const char* address;
    dlpack::Type type;
    int32_t rank;
    size_t layout;  // where its sizes, followed by its strides, begin in `layouts_`
  };

  bool is_at(const dlpack::Tensor& tensor, const Place& place) const;

  dlpack::Reader reader_;
  std::vector<Place> places_;
  std::vector<int64_t> layouts_;
};

}  // namespace rlopt
