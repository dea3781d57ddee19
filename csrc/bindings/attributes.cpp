// Whether attributes of Python objects are still the same objects, checked in C++ at every call.
#include <vector>

#include "bindings/bind.h"
#include "bindings/layouts.h"

namespace rlopt {

namespace {

/// What dictionaries hold under some keys, and the classes of objects. Keeps none of these alive, but keys.
///
/// Each check makes sure that what the later ones look into is alive: so a dictionary is added after what
/// holds it, and an object's dictionary after the object. The first object has to be alive.
class Attributes {
 public:
  /// An object keeps its class and its `__dict__`.
  void add_owner(const py::handle& object) {
    auto* const type = reinterpret_cast<PyObject*>(Py_TYPE(object.ptr()));  // NOLINT: a type is an object
    checks_.push_back({Kind::kOwner, object.ptr(), own_dict(object.ptr()).ptr(), type, 0});
  }

  /// A dictionary holds the same object under a name.
  void add_item(const py::dict& dict, const py::handle& key, const py::handle& value) {
    checks_.push_back({Kind::kItem, dict.ptr(), name(key), value.ptr(), 0});
  }

  /// As `add_item`, and the tensor keeps its class and its layout; ValueError if that cannot be read.
  void add_tensor(const py::dict& dict, const py::handle& key, const py::handle& value) {
    layouts_.add(value.ptr());
    types_.push_back(Py_TYPE(value.ptr()));
    checks_.push_back({Kind::kTensor, dict.ptr(), name(key), value.ptr(), layouts_.size() - 1});
  }

  /// A dictionary holds nothing under a name.
  void add_absence(const py::dict& dict, const py::handle& key) {
    checks_.push_back({Kind::kItem, dict.ptr(), name(key), nullptr, 0});
  }

  /// A dictionary keeps its keys and their order.
  void add_keys(const py::dict& dict) {
    checks_.push_back({Kind::kKeys, dict.ptr(), nullptr, nullptr, keys_.size()});
    for (const auto& item : dict) keys_.push_back(kept(item.first));
    keys_.push_back(nullptr);
  }

  bool are_unchanged() const {
    for (const Check& check : checks_)
      if (!holds(check)) return false;
    return true;
  }

 private:
  enum class Kind { kOwner, kItem, kTensor, kKeys };

  struct Check {
    Kind kind;
    PyObject* object;  // the owner, or the dictionary
    PyObject* key;     // of an owner: its dictionary
    PyObject* value;   // null: there is none; of an owner: its class
    size_t number;     // of a tensor: which layout; of keys: where they begin
  };

  bool holds(const Check& check) const {
    switch (check.kind) {
      case Kind::kOwner:
        return Py_TYPE(check.object) == reinterpret_cast<PyTypeObject*>(check.value) &&  // NOLINT: see above
               own_dict(check.object).ptr() == check.key;
      case Kind::kItem:
        return held(check) == check.value;
      case Kind::kTensor:
        return held(check) == check.value && Py_TYPE(check.value) == types_[check.number] &&
               layouts_.matches(check.number, check.value, /*with_address=*/false);
      case Kind::kKeys:
        return has_keys(check.object, &keys_[check.number]);
    }
    return false;
  }

  /// Whether a dictionary has these very keys in this order; null ends them.
  static bool has_keys(PyObject* dict, PyObject* const* keys) {
    PyObject* key = nullptr;
    Py_ssize_t position = 0;
    for (; PyDict_Next(dict, &position, &key, nullptr) != 0; ++keys)
      if (key != *keys) return false;
    return *keys == nullptr;
  }

  static PyObject* held(const Check& check) {
    PyObject* const value = PyDict_GetItemWithError(check.object, check.key);
    if (value == nullptr && PyErr_Occurred() != nullptr) throw py::error_already_set();
    return value;
  }

  static py::object own_dict(PyObject* object) {
    auto dict = py::reinterpret_steal<py::object>(PyObject_GenericGetDict(object, nullptr));
    if (!dict) throw py::error_already_set();
    return dict;
  }

  /// The names of attributes are interned in dictionaries: so they are compared by address.
  PyObject* name(const py::handle& key) {
    kept(key);
    PyUnicode_InternInPlace(&names_.back().ptr());
    return names_.back().ptr();
  }

  /// A key lives on, so that no other takes its address.
  PyObject* kept(const py::handle& key) {
    if (!PyUnicode_CheckExact(key.ptr())) throw py::type_error("a name is expected");
    names_.push_back(py::reinterpret_borrow<py::object>(key));
    return key.ptr();
  }

  std::vector<Check> checks_;
  std::vector<const PyTypeObject*> types_;
  std::vector<PyObject*> keys_;
  std::vector<py::object> names_;
  Layouts layouts_;
};

}  // namespace

void bind_attributes(py::module_& m) {
  py::class_<Attributes>(m, "Attributes", "What dictionaries hold, without keeping it alive.")
      .def(py::init<>())
      .def("add_owner", &Attributes::add_owner, py::arg("owner"))
      .def("add_item", &Attributes::add_item, py::arg("holder"), py::arg("key"), py::arg("value"))
      .def("add_tensor", &Attributes::add_tensor, py::arg("holder"), py::arg("key"), py::arg("value"))
      .def("add_absence", &Attributes::add_absence, py::arg("holder"), py::arg("key"))
      .def("add_keys", &Attributes::add_keys, py::arg("holder"))
      .def("are_unchanged", &Attributes::are_unchanged,
           "Whether all that was added is the same; what it was added from may be dead.");
}

}  // namespace rlopt
