#include "bindings/modules.h"

#include <algorithm>

#include "bindings/memory.h"

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

constexpr size_t kAhead = 8;  // modules or tensors, whose memory comes in while others are compared

}  // namespace

Template::Template(const py::list& items) {
  for (const py::handle& item : items) items_.push_back(item.is_none() ? nullptr : item.ptr());
}

py::object Template::filled(const py::tuple& values) const {
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

size_t Template::value_at(size_t position) const {
  return static_cast<size_t>(
      std::count(items_.begin(), items_.begin() + static_cast<std::ptrdiff_t>(position), nullptr));
}

ModuleWatch::ModuleWatch(const py::list& modules, const py::list& dicts, const py::list& tensors,
                         const std::vector<uintptr_t>& implementations) {
  if (!kHasVersions) throw py::value_error("this Python does not number the states of dicts");
  if (py::len(modules) != py::len(dicts) || py::len(tensors) != implementations.size())
    throw py::value_error("dicts for each module, an implementation for each tensor");
  for (size_t i = 0; i < py::len(modules); ++i) {
    PyObject* module = py::object(modules[i]).ptr();
    PyObject** place = _PyObject_GetDictPtr(module);
    if (place == nullptr || *place == nullptr || !PyDict_CheckExact(*place))
      throw py::value_error("a module without a plain __dict__");
    dicts_.push_back({*place, version_of(*place)});
    for (const py::handle& dict : py::object(dicts[i])) {
      if (!PyDict_CheckExact(dict.ptr())) throw py::value_error("a module with dicts of another kind");
      dicts_.push_back({dict.ptr(), version_of(dict.ptr())});
    }
    modules_.push_back({module, Py_TYPE(module), place, dicts_.size()});
  }
  for (size_t i = 0; i < py::len(tensors); ++i)
    tensors_.emplace_back(py::object(tensors[i]).ptr(), implementations[i]);
}

bool ModuleWatch::is_unchanged() const {
  size_t next = 0;
  for (size_t i = 0; i < modules_.size(); ++i) {
    if (i + kAhead < modules_.size()) {
      const Module& ahead = modules_[i + kAhead];
      prefetch(ahead.object);
      prefetch(ahead.place);
      for (size_t at = modules_[i + kAhead - 1].end; at < ahead.end; ++at) prefetch(dicts_[at].object);
    }
    const Module& module = modules_[i];
    if (Py_TYPE(module.object) != module.type || *module.place != dicts_[next].object) return false;
    for (; next < module.end; ++next)
      if (version_of(dicts_[next].object) != dicts_[next].version) return false;
  }
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (i + kAhead < tensors_.size()) tensors_[i + kAhead].prefetch();
    if (!tensors_[i].hold()) return false;
  }
  return true;
}

void bind_modules(py::module_& m) {
  m.def(
      "dispatch_keys",
      []() -> py::object {
        const uint64_t* keys = local_dispatch_keys();
        if (keys == nullptr) return py::none();
        return py::bytes(reinterpret_cast<const char*>(keys), 2 * sizeof(uint64_t));  // NOLINT: as bytes
      },
      "Which kinds of kernels this thread runs, as a text to compare; None where it cannot be read.");
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
