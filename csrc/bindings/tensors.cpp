#include "bindings/tensors.h"

namespace rlopt {

namespace {

/// The items of a list or tuple without a reference to each.
class Items {
 public:
  explicit Items(const py::sequence& given)
      : fast_(py::reinterpret_steal<py::object>(PySequence_Fast(given.ptr(), "tensors in a sequence"))) {
    if (!fast_) throw py::error_already_set();
  }
  size_t size() const { return static_cast<size_t>(PySequence_Fast_GET_SIZE(fast_.ptr())); }
  const PyObject* operator[](size_t i) const { return PySequence_Fast_ITEMS(fast_.ptr())[i]; }

 private:
  py::object fast_;
};

}  // namespace

TensorStates::TensorStates(const py::sequence& tensors, const std::vector<uintptr_t>& implementations,
                           const std::vector<int64_t>& versions, const std::vector<uintptr_t>& addresses,
                           const std::vector<std::vector<int64_t>>& layouts) {
  const Items items(tensors);
  const size_t size = items.size();
  if (implementations.size() != size || versions.size() != size || addresses.size() != size ||
      layouts.size() != size)
    throw py::value_error("one implementation, version, address and layout for each tensor");
  if (size > 0) offset_ = tensor_offset(items[0], implementations[0]);
  for (size_t i = 0; i < size; ++i) {
    states_.push_back({items[i], implementations[i], versions[i], addresses[i], layouts_.size(),
                       layouts[i].size() / 2, TensorMemory(items[i], implementations[i])});
    layouts_.insert(layouts_.end(), layouts[i].begin(), layouts[i].end());
  }
  if (!TorchFunctions::loaded().has_state() || !is_of(tensors))
    throw py::value_error("this PyTorch cannot be read from C++");
}

bool TensorStates::is_of(const py::sequence& tensors) const {
  const Items items(tensors);
  if (items.size() != states_.size()) return false;
  for (size_t i = 0; i < states_.size(); ++i)
    if (items[i] != states_[i].object) return false;
  return is_unchanged();  // these are alive
}

void bind_tensors(py::module_& m) {
  py::class_<TensorStates>(m, "TensorStates",
                           "Tensor objects as they were; ValueError where this PyTorch cannot be read.")
      .def(py::init<const py::sequence&, const std::vector<uintptr_t>&, const std::vector<int64_t>&,
                    const std::vector<uintptr_t>&, const std::vector<std::vector<int64_t>>&>(),
           py::arg("tensors"), py::arg("implementations"), py::arg("versions"), py::arg("addresses"),
           py::arg("layouts"))
      .def("is_of", &TensorStates::is_of, py::arg("tensors"),
           "Whether these are the same objects, in the same versions and strides, at the same addresses.");
}

}  // namespace rlopt
