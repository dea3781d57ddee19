// Whether a module and all below it are as they were: the facts that a compiled call hangs on, at a glance.
//
// CPython numbers the states of a dict: whatever is set or deleted in it gives it another number, and no two
// states of any dicts have the same one. So the attributes of a module are unchanged as long as its
// `__dict__` has its number. Objects are borrowed, never kept alive: each is held by a dict that is looked at
// before it.
#include <cstdint>

#include "bindings/bind.h"
#include "bindings/torch_functions.h"

namespace rlopt {

namespace {

#if PY_VERSION_HEX < 0x030E0000 && !defined(Py_GIL_DISABLED)
constexpr bool kHasVersions = true;
uint64_t version_of(PyObject* dict) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"  // there until 3.13
  return reinterpret_cast<PyDictObject*>(dict)->ma_version_tag;
#pragma GCC diagnostic pop
}
#else
constexpr bool kHasVersions = false;
uint64_t version_of(PyObject*) { return 0; }
#endif

/// Arguments of a call: borrowed objects, and places for what each call brings along.
class Template {
 public:
  /// None stands for a place.
  explicit Template(const py::list& items) {
    for (const py::handle& item : items) items_.push_back(item.is_none() ? nullptr : item.ptr());
  }

  /// A new tuple with the values in the places, one after the other.
  py::object filled(const py::tuple& values) const {
    auto filled = py::reinterpret_steal<py::object>(PyTuple_New(static_cast<Py_ssize_t>(items_.size())));
    if (!filled) throw py::error_already_set();
    size_t next = 0;
    for (size_t i = 0; i < items_.size(); ++i) {
      PyObject* item =
          items_[i] != nullptr ? items_[i] : PyTuple_GetItem(values.ptr(), static_cast<Py_ssize_t>(next++));
      if (item == nullptr) throw py::error_already_set();
      Py_INCREF(item);
      PyTuple_SET_ITEM(filled.ptr(), static_cast<Py_ssize_t>(i), item);
    }
    return filled;
  }

 private:
  std::vector<PyObject*> items_;
};

/// Modules, each after the one that holds it, with their dicts of parameters, buffers and modules, and the
/// tensors in these.
class ModuleWatch {
 public:
  ModuleWatch(const py::list& modules, const py::list& dicts, const py::list& tensors,
              const std::vector<uintptr_t>& implementations) {
    if (!kHasVersions) throw py::value_error("this Python does not number the states of dicts");
    if (py::len(modules) != py::len(dicts) || py::len(tensors) != implementations.size())
      throw py::value_error("dicts for each module, an implementation for each tensor");
    for (size_t i = 0; i < py::len(modules); ++i) {
      PyObject* module = py::object(modules[i]).ptr();
      PyObject* own = own_dict(module);
      if (own == nullptr || !PyDict_CheckExact(own))
        throw py::value_error("a module without a plain __dict__");
      modules_.push_back({module, Py_TYPE(module), {own, version_of(own)}, {}});
      for (const py::handle& dict : py::object(dicts[i])) {
        if (!PyDict_CheckExact(dict.ptr())) throw py::value_error("a module with dicts of another kind");
        modules_.back().dicts.push_back({dict.ptr(), version_of(dict.ptr())});
      }
    }
    for (size_t i = 0; i < py::len(tensors); ++i)
      tensors_.emplace_back(py::object(tensors[i]).ptr(), implementations[i]);
  }

  /// Whether nothing has been set or deleted since, no module or tensor has another class, and no tensor
  /// another type, size, stride, device, or need of a gradient. What is in the tensors is not asked.
  bool is_unchanged() const {
    for (const Module& module : modules_) {
      if (Py_TYPE(module.object) != module.type || own_dict(module.object) != module.own.object ||
          version_of(module.own.object) != module.own.version)
        return false;
      for (const Dict& dict : module.dicts)
        if (version_of(dict.object) != dict.version) return false;
    }
    for (const TensorFacts& tensor : tensors_)
      if (!tensor.hold()) return false;
    return true;
  }

  /// The filled template; None where something has changed, and borrowed objects may be dead.
  py::object fill(const Template& arguments, const py::tuple& values) const {
    if (!is_unchanged()) return py::none();
    return arguments.filled(values);
  }

 private:
  struct Dict {
    PyObject* object;
    uint64_t version;
  };
  struct Module {
    PyObject* object;
    PyTypeObject* type;
    Dict own;
    std::vector<Dict> dicts;
  };

  static PyObject* own_dict(PyObject* module) {
    PyObject** place = _PyObject_GetDictPtr(module);
    return place == nullptr ? nullptr : *place;
  }

  std::vector<Module> modules_;
  std::vector<TensorFacts> tensors_;
};

}  // namespace

void bind_modules(py::module_& m) {
  py::class_<Template>(m, "Template", "Arguments of a call; None stands for what each call brings along.")
      .def(py::init<const py::list&>(), py::arg("items"))
      .def("filled", &Template::filled, py::arg("values"),
           "The arguments of a call, whose items somebody has to hold.");
  py::class_<ModuleWatch>(m, "ModuleWatch",
                          "Modules and tensors as they were; ValueError where this cannot be told.")
      .def(py::init<const py::list&, const py::list&, const py::list&, const std::vector<uintptr_t>&>(),
           py::arg("modules"), py::arg("dicts"), py::arg("tensors"), py::arg("implementations"))
      .def("is_unchanged", &ModuleWatch::is_unchanged, "Whether nothing but numbers in tensors has changed.")
      .def("fill", &ModuleWatch::fill, py::arg("template"), py::arg("values"),
           "The arguments of a call; None where something has changed.");
}

}  // namespace rlopt
