// Whether a module and all below it are as they were: the facts that a compiled call hangs on, at a glance.
//
// CPython numbers the states of a dict: whatever is set or deleted in it gives it another number, and no two
// states of any dicts have the same one. So the attributes of a module are unchanged as long as its
// `__dict__` has its number. Objects are borrowed, never kept alive: each is held by a dict that is looked at
// before it.
#pragma once

#include <cstdint>
#include <vector>

#include "bindings/bind.h"
#include "bindings/torch_functions.h"

namespace rlopt {

/// Arguments of a call: borrowed objects, and places for what each call brings along.
class Template {
 public:
  /// None stands for a place.
  explicit Template(const py::list& items);

  /// A new tuple with the values in the places, one after the other.
  py::object filled(const py::tuple& values) const;

  size_t size() const { return items_.size(); }

  /// The object at a position; null for a place.
  PyObject* item(size_t position) const { return items_.at(position); }

  /// Which of the values goes into the place at a position.
  size_t value_at(size_t position) const;

 private:
  std::vector<PyObject*> items_;
};

/// Modules, each after the one that holds it, with those of their dicts that matter, and the tensors in
/// these.
class ModuleWatch {
 public:
  ModuleWatch(const py::list& modules, const py::list& dicts, const py::list& tensors,
              const std::vector<uintptr_t>& implementations);

  /// Whether nothing has been set or deleted since, no module or tensor has another class, and no tensor
  /// another type, size, stride, device, or need of a gradient. What is in the tensors is not asked.
  bool is_unchanged() const;

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
    PyObject** place;  // of its own dict, as long as it has this type
    size_t end;        // of its dicts, of which its own is the first
  };

  std::vector<Module> modules_;
  std::vector<Dict> dicts_;
  std::vector<TensorFacts> tensors_;
};

}  // namespace rlopt
