// Versions and addresses of tensors, read in C++ at every call.
#pragma once

#include <cstdint>
#include <vector>

#include "bindings/bind.h"
#include "bindings/memory.h"
#include "bindings/torch_functions.h"

namespace rlopt {

/// Tensor objects as they were when this was made. Keeps none of them alive.
class TensorStates {
 public:
  /// One list for each fact, as Python tells it: `_cdata`, `_version` and `data_ptr()`.
  TensorStates(const py::sequence& tensors, const std::vector<uintptr_t>& implementations,
               const std::vector<int64_t>& versions, const std::vector<uintptr_t>& addresses);

  /// Whether these are the same objects, in the same versions, at the same addresses.
  bool is_of(const py::sequence& tensors) const;

  /// Whether the objects, all of which are alive, are in the same versions, at the same addresses.
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
    TensorMemory ahead;
  };

  /// The object is alive: the caller holds it.
  bool is_as_it_was(const TorchFunctions& torch, const State& state) const {
    if (word_at(state.object, offset_) != state.implementation) return false;  // and is not looked into
    const void* tensor = tensor_at(state.object, offset_);
    void* address = nullptr;
    return torch.version(tensor) == state.version &&
           torch.data_ptr(tensor, static_cast<void*>(&address)) == 0 &&
           reinterpret_cast<uintptr_t>(address) == state.address;  // NOLINT: a number to compare
  }

  size_t offset_ = 0;
  std::vector<State> states_;
};

}  // namespace rlopt
