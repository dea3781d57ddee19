// Versions and addresses of tensors, read in C++ at every call.
//
// Nothing here is compiled or linked against torch: what is read comes through two functions that the loaded
// libtorch exports, one of its stable C interface and one that has been the same since PyTorch 1.6. Where
// they are missing, or tell other numbers than Python does, nothing is watched here.
#include <dlfcn.h>

#include <cstdint>
#include <cstring>

#include "bindings/bind.h"

namespace rlopt {

namespace {

/// What libtorch exports; both take the address of an at::Tensor, which is one pointer to its implementation.
struct Torch {
  int64_t (*version)(const void*) = nullptr;           // at::TensorBase::_version() const
  int32_t (*data_ptr)(const void*, void**) = nullptr;  // aoti_torch_get_data_ptr

  static const Torch& loaded() {
    static const Torch torch;
    return torch;
  }
  bool is_complete() const { return version != nullptr && data_ptr != nullptr; }

 private:
  Torch() {
    void* library = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
    if (library == nullptr) return;
    find(library, "_ZNK2at10TensorBase8_versionEv", version);
    find(library, "aoti_torch_get_data_ptr", data_ptr);
  }
  template <class Function>
  static void find(void* library, const char* name, Function& function) {
    void* symbol = dlsym(library, name);
    std::memcpy(&function, &symbol, sizeof(symbol));
  }
};

uintptr_t word_at(const PyObject* object, size_t offset) {
  uintptr_t word = 0;
  std::memcpy(&word, reinterpret_cast<const char*>(object) + offset, sizeof(word));  // NOLINT: memory of it
  return word;
}

/// Tensor objects as they were when this was made. Keeps none of them alive.
class TensorStates {
 public:
  /// One list for each fact, as Python tells it: `_cdata`, `_version` and `data_ptr()`.
  TensorStates(const py::sequence& tensors, const std::vector<uintptr_t>& implementations,
               const std::vector<int64_t>& versions, const std::vector<uintptr_t>& addresses) {
    const Items items(tensors);
    const size_t size = items.size();
    if (implementations.size() != size || versions.size() != size || addresses.size() != size)
      throw py::value_error("one implementation, version and address for each tensor");
    if (size > 0) offset_ = offset_of(items[0], implementations[0]);
    for (size_t i = 0; i < size; ++i)
      states_.push_back({items[i], implementations[i], versions[i], addresses[i]});
    if (!Torch::loaded().is_complete() || !is_of(tensors))
      throw py::value_error("this PyTorch cannot be read from C++");
  }

  /// Whether these are the same objects, in the same versions, at the same addresses.
  bool is_of(const py::sequence& tensors) const {
    const Items items(tensors);
    if (items.size() != states_.size()) return false;
    for (size_t i = 0; i < states_.size(); ++i)
      if (items[i] != states_[i].object || !is_as_it_was(states_[i])) return false;
    return true;
  }

 private:
  struct State {
    const PyObject* object;
    uintptr_t implementation;
    int64_t version;
    uintptr_t address;
  };

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

  /// Where in its Python object a tensor lies. It differs between versions of torch.
  static size_t offset_of(const PyObject* object, uintptr_t implementation) {
    const auto size = static_cast<size_t>(Py_TYPE(object)->tp_basicsize);
    for (size_t offset = sizeof(PyObject); offset + sizeof(uintptr_t) <= size; offset += sizeof(uintptr_t))
      if (word_at(object, offset) == implementation) return offset;
    throw py::value_error("this PyTorch keeps its tensors elsewhere");
  }

  /// The object is alive: the caller holds it.
  bool is_as_it_was(const State& state) const {
    if (word_at(state.object, offset_) != state.implementation) return false;  // and is not looked into
    const Torch& torch = Torch::loaded();
    const void* tensor = reinterpret_cast<const char*>(state.object) + offset_;  // NOLINT: memory of it
    void* address = nullptr;
    return torch.version(tensor) == state.version && torch.data_ptr(tensor, &address) == 0 &&
           reinterpret_cast<uintptr_t>(address) == state.address;  // NOLINT: a number to compare
  }

  size_t offset_ = 0;
  std::vector<State> states_;
};

}  // namespace

void bind_tensors(py::module_& m) {
  py::class_<TensorStates>(m, "TensorStates",
                           "Tensor objects as they were; ValueError where this PyTorch cannot be read.")
      .def(py::init<const py::sequence&, const std::vector<uintptr_t>&, const std::vector<int64_t>&,
                    const std::vector<uintptr_t>&>(),
           py::arg("tensors"), py::arg("implementations"), py::arg("versions"), py::arg("addresses"))
      .def("is_of", &TensorStates::is_of, py::arg("tensors"),
           "Whether these are the same objects, in the same versions, at the same addresses.");
}

}  // namespace rlopt
