// Addresses and strides of tensors, checked in C++ at every call.
#include <vector>

#include "bindings/bind.h"
#include "bindings/layouts.h"

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
  explicit TensorPlaces(const py::sequence& tensors) {
    const Items items(tensors);
    for (size_t i = 0; i < items.size(); ++i) {
      layouts_.add(items[i]);
      objects_.push_back(items[i]);
    }
  }

  /// Whether these are the same objects, with the same device, dtype, sizes, strides and addresses.
  bool is_of(const py::sequence& tensors) const {
    const Items items(tensors);
    if (items.size() != objects_.size()) return false;
    for (size_t i = 0; i < objects_.size(); ++i)
      if (items[i] != objects_[i]) return false;
    for (size_t i = 0; i < objects_.size(); ++i)
      if (!layouts_.matches(i, items[i], /*with_address=*/true)) return false;
    return true;
  }

 private:
  std::vector<const PyObject*> objects_;
  Layouts layouts_;
};

}  // namespace

void bind_tensors(py::module_& m) {
  py::class_<TensorPlaces>(m, "TensorPlaces",
                           "Where tensor objects lay; ValueError where one of them has no plain memory.")
      .def(py::init<const py::sequence&>(), py::arg("tensors"))
      .def(
          "is_of", &TensorPlaces::is_of, py::arg("tensors"),
          "Whether these are the same objects, of the same dtype, sizes and strides, at the same addresses.");
}

}  // namespace rlopt
