// Layouts and addresses of tensors, checked in C++ at every call.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "bindings/bind.h"
#include "bindings/dlpack.h"

namespace rlopt {

namespace {

/// The items of a list or tuple, as borrowed references.
class Items {
 public:
  explicit Items(const py::sequence& given)
      : fast_(py::reinterpret_steal<py::object>(PySequence_Fast(given.ptr(), "tensors in a sequence"))) {
    if (!fast_) throw py::error_already_set();
  }
  size_t size() const { return static_cast<size_t>(PySequence_Fast_GET_SIZE(fast_.ptr())); }
  PyObject* operator[](size_t i) const { return PySequence_Fast_ITEMS(fast_.ptr())[i]; }

 private:
  py::object fast_;
};

/// The addresses and layouts of tensor objects at construction. Does not keep them alive.
class TensorPlaces {
 public:
  /// ValueError if one of them has no plain memory, or this PyTorch does not expose it.
  explicit TensorPlaces(const py::sequence& tensors, bool with_addresses) : with_addresses_(with_addresses) {
    const Items items(tensors);
    for (size_t i = 0; i < items.size(); ++i) {
      const std::optional<dlpack::Tensor> read = reader_.read(items[i]);
      if (!read) throw py::value_error("a tensor without plain memory");
      places_.push_back({items[i], read->first(), read->device, read->type, read->rank, layouts_.size()});
      layouts_.insert(layouts_.end(), read->sizes, read->sizes + read->rank);
      layouts_.insert(layouts_.end(), read->strides, read->strides + read->rank);
    }
  }

  /// Whether these are the same objects, with the same device, dtype, sizes, strides and addresses.
  bool is_of(const py::sequence& tensors) const {
    const Items items(tensors);
    if (items.size() != places_.size()) return false;
    for (size_t i = 0; i < places_.size(); ++i)
      if (items[i] != places_[i].object) return false;
    for (size_t i = 0; i < places_.size(); ++i) {
      const std::optional<dlpack::Tensor> read = reader_.read(items[i]);
      if (!read || !is_at(*read, places_[i])) return false;
    }
    return true;
  }

 private:
  struct Place {
    const PyObject* object;
    const char* address;
    dlpack::Device device;
    dlpack::Type type;
    int32_t rank;
    size_t layout;  // where its sizes, followed by its strides, begin in `layouts_`
  };

  bool is_at(const dlpack::Tensor& tensor, const Place& place) const {
    if (with_addresses_ && tensor.first() != place.address) return false;
    if (tensor.device != place.device || tensor.type != place.type || tensor.rank != place.rank) return false;
    // `x.data = x.data.t()` changes neither version nor address.
    const int64_t* const known = layouts_.data() + place.layout;
    return std::equal(tensor.sizes, tensor.sizes + tensor.rank, known) &&
           std::equal(tensor.strides, tensor.strides + tensor.rank, known + tensor.rank);
  }

  dlpack::Reader reader_;
  bool with_addresses_;
  std::vector<Place> places_;
  std::vector<int64_t> layouts_;
};

}  // namespace

void bind_tensors(py::module_& m) {
  py::class_<TensorPlaces>(m, "TensorPlaces",
                           "Where tensor objects lay; ValueError where one of them has no plain memory.")
      .def(py::init<const py::sequence&, bool>(), py::arg("tensors"), py::arg("with_addresses") = true)
      .def("is_of", &TensorPlaces::is_of, py::arg("tensors"),
           "Whether these are the same objects, of the same device, dtype, sizes and strides; with "
           "addresses, also "
           "at the same ones.");
}

}  // namespace rlopt
