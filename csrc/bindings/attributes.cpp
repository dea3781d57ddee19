// Whether attributes of Python objects are still the same objects, checked in C++ at every call.
#include <vector>

#include "bindings/bind.h"

namespace rlopt {

namespace {

/// What dictionaries hold under some keys, and the classes of objects. Keeps none of these alive.
class Attributes {
 public:
  /// `owners` are objects whose class and `__dict__` are compared; `items` are (dictionary, key, value), or
  /// (dictionary, key) for a key that is not there; of `complete`, dictionaries, the number of keys is
  /// compared.
  Attributes(const py::sequence& owners, const py::sequence& items, const py::sequence& complete) {
    for (const py::handle owner : owners)
      owners_.push_back({owner.ptr(), Py_TYPE(owner.ptr()), own_dict(owner.ptr()).ptr()});
    for (const py::handle item : items) {
      const auto parts = item.cast<py::tuple>();
      if (!PyDict_Check(parts[0].ptr()) || !PyUnicode_CheckExact(parts[1].ptr()))
        throw py::type_error("a dictionary and a name are expected");
      items_.push_back({parts[0].ptr(), parts[1].ptr(), parts.size() > 2 ? parts[2].ptr() : nullptr});
    }
    for (const py::handle dict : complete) sizes_.push_back({dict.ptr(), PyDict_Size(dict.ptr())});
  }

  bool are_unchanged() const {
    for (const Owner& owner : owners_)
      if (Py_TYPE(owner.object) != owner.type || own_dict(owner.object).ptr() != owner.dict) return false;
    for (const Item& item : items_) {
      const PyObject* const value = PyDict_GetItemWithError(item.dict, item.key);
      if (value == nullptr && PyErr_Occurred() != nullptr) throw py::error_already_set();
      if (value != item.value) return false;
    }
    for (const Size& size : sizes_)
      if (PyDict_Size(size.dict) != size.size) return false;
    return true;
  }

 private:
  struct Owner {
    PyObject* object;
    const PyTypeObject* type;
    const PyObject* dict;
  };

  struct Item {
    PyObject* dict;
    PyObject* key;
    const PyObject* value;  // null: the key is not there
  };

  struct Size {
    PyObject* dict;
    Py_ssize_t size;
  };

  static py::object own_dict(PyObject* object) {
    auto dict = py::reinterpret_steal<py::object>(PyObject_GenericGetDict(object, nullptr));
    if (!dict) throw py::error_already_set();
    return dict;
  }

  std::vector<Owner> owners_;
  std::vector<Item> items_;
  std::vector<Size> sizes_;
};

}  // namespace

void bind_attributes(py::module_& m) {
  py::class_<Attributes>(m, "Attributes", "What dictionaries hold, without keeping it alive.")
      .def(py::init<const py::sequence&, const py::sequence&, const py::sequence&>(), py::arg("owners"),
           py::arg("items"), py::arg("complete"))
      .def("are_unchanged", &Attributes::are_unchanged,
           "Whether all of it, and the classes and dictionaries of the owners, are the same objects.");
}

}  // namespace rlopt
