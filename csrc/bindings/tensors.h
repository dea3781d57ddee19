// Versions, addresses and strides of tensors, read in C++ at every call.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "bindings/bind.h"
#include "bindings/memory.h"
#include "bindings/torch_functions.h"

namespace rlopt {

/// Tensor objects as they were when this was made. Keeps none of them alive.
class TensorStates {
 public:
  /// One list for each fact, as Python tells it: `_cdata`, `_version`, `data_ptr()`, and sizes followed by
  /// strides, which are not looked at where that list is empty and the tensor has a dimension.
  TensorStates(const py::sequence& tensors, const std::vector<uintptr_t>& implementations,
               const std::vector<int64_t>& versions, const std::vector<uintptr_t>& addresses,
               const std::vector<std::vector<int64_t>>& layouts);

  /// Whether these are the same objects, in the same versions and strides, at the same addresses.
  bool is_of(const py::sequence& tensors) const;

  /// Whether the objects, all of which are alive, are what they were.
  bool is_unchanged() const {
    constexpr size_t kAhead = 8;  // tensors, whose memory comes in while others are compared
    const TorchFunctions& torch = TorchFunctions::loaded();
    for (size_t i = 0; i < states_.size(); ++i) {
      if (i + kAhead < states_.size()) states_[i + kAhead].ahead.prefetch();
      if (!is_as_it_was(torch, states_[i])) return false;
    }
    return true;
  }

 private:
  struct State {
    const PyObject* object;
    uintptr_t implementation;
    int64_t version;
    uintptr_t address;
    size_t layout;  // where its sizes begin among all
    size_t dim;
    TensorMemory ahead;
  };

  /// The object is alive: the caller holds it.
  bool is_as_it_was(const TorchFunctions& torch, const State& state) const {
    if (word_at(state.object, offset_) != state.implementation) return false;  // and is not looked into
    const void* tensor = tensor_at(state.object, offset_);
    void* address = nullptr;
    return torch.version(tensor) == state.version &&
           torch.data_ptr(tensor, static_cast<void*>(&address)) == 0 &&
           reinterpret_cast<uintptr_t>(address) == state.address &&  // NOLINT: a number to compare
           has_layout(torch, tensor, state);
  }

  /// `x.data = x.data.t()` leaves version and address as they are.
  bool has_layout(const TorchFunctions& torch, const void* tensor, const State& state) const {
    if (state.dim == 0) return true;
    int64_t dim = -1;
    if (torch.dim(tensor, &dim) != 0 || dim != static_cast<int64_t>(state.dim)) return false;
    const void *sizes = nullptr, *strides = nullptr;
    if (torch.sizes(tensor, static_cast<void*>(&sizes)) != 0 ||
        torch.strides(tensor, static_cast<void*>(&strides)) != 0)
      return false;
    const size_t bytes = state.dim * sizeof(int64_t);
    const int64_t* const known = layouts_.data() + state.layout;
    return std::memcmp(sizes, known, bytes) == 0 && std::memcmp(strides, known + state.dim, bytes) == 0;
  }

  size_t offset_ = 0;
  std::vector<State> states_;
  std::vector<int64_t> layouts_;  // of each tensor sizes and strides
};

}  // namespace rlopt
