// Layouts of tensors, recorded to be compared later.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "bindings/dlpack.h"

namespace rlopt {

/// Devices, dtypes, sizes, strides and addresses of tensors. Does not keep them alive.
class Layouts {
 public:
  /// Records one more; ValueError if it has no plain memory, or this PyTorch does not expose it.
  void add(PyObject* tensor) {
    const std::optional<dlpack::Tensor> read = reader_.read(tensor);
    if (!read) throw py::value_error("a tensor without plain memory");
    places_.push_back({read->first(), read->device, read->type, read->rank, sizes_.size()});
    sizes_.insert(sizes_.end(), read->sizes, read->sizes + read->rank);
    sizes_.insert(sizes_.end(), read->strides, read->strides + read->rank);
  }

  size_t size() const { return places_.size(); }

  /// Whether a tensor has the layout of the i-th recorded, and its address if that is compared.
  bool matches(size_t i, PyObject* tensor, bool with_address) const {
    const Place& place = places_[i];
    const std::optional<dlpack::Tensor> read = reader_.read(tensor);
    if (!read || (with_address && read->first() != place.address)) return false;
    if (read->device != place.device || read->type != place.type || read->rank != place.rank) return false;
    // `x.data = x.data.t()` changes neither version nor address.
    const int64_t* const known = sizes_.data() + place.sizes;
    return std::equal(read->sizes, read->sizes + read->rank, known) &&
           std::equal(read->strides, read->strides + read->rank, known + read->rank);
  }

 private:
  struct Place {
    const char* address;
    dlpack::Device device;
    dlpack::Type type;
    int32_t rank;
    size_t sizes;  // where its sizes, followed by its strides, begin in `sizes_`
  };

  dlpack::Reader reader_;
  std::vector<Place> places_;
  std::vector<int64_t> sizes_;
};

}  // namespace rlopt
