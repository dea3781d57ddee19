// A call that is like one that was made before, without Dynamo: see api/shortcut.py.
//
// It runs where a model has just emptied the caches. There a function of Python costs some microseconds
// before it does anything, and a dozen of them stood between a call and its graph.
#include <cstring>

#include "bindings/bind.h"
#include "bindings/torch_functions.h"

namespace rlopt {

namespace {

/// The fields of `_Shortcut`, in order.
struct Fields {
  PyObject *wrapper, *check, *state, *are_set, *pick, *run, *result;

  explicit Fields(const py::handle& known) {
    constexpr Py_ssize_t kNumFields = 7;
    if (!PyTuple_Check(known.ptr()) || PyTuple_GET_SIZE(known.ptr()) < kNumFields)
      throw py::type_error("a known call has seven fields");
    Py_ssize_t next = 0;
    for (PyObject** field : {&wrapper, &check, &state, &are_set, &pick, &run, &result})
      *field = PyTuple_GET_ITEM(known.ptr(), next++);
  }
};

PyObject* interned(const char* text) {
  PyObject* name = PyUnicode_InternFromString(text);
  if (name == nullptr) throw py::error_already_set();
  return name;
}

py::object owned(PyObject* object) {
  if (object == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(object);
}

bool is_true(const py::object& object) {
  const int found = PyObject_IsTrue(object.ptr());
  if (found < 0) throw py::error_already_set();
  return found != 0;
}

/// Whether compiled code is to be used at all: `torch.compiler.set_stance` says otherwise.
bool is_compiling_as_usual(const py::dict& names) {
  static PyObject* const stance_name = interned("_stance");
  static PyObject* const kind_name = interned("stance");
  static PyObject* const backend_name = interned("backend");
  PyObject* stance = PyDict_GetItemWithError(names.ptr(), stance_name);
  if (stance == nullptr) {
    if (PyErr_Occurred() != nullptr) throw py::error_already_set();
    return false;
  }
  const py::object held = py::reinterpret_borrow<py::object>(stance);
  const py::object kind = owned(PyObject_GetAttr(stance, kind_name));
  return PyUnicode_Check(kind.ptr()) && PyUnicode_CompareWithASCIIString(kind.ptr(), "default") == 0 &&
         owned(PyObject_GetAttr(stance, backend_name)).is_none();
}

/// Whether the dispatcher is for this thread what it was.
bool is_state(PyObject* state) {
  const uint64_t* keys = local_dispatch_keys();
  constexpr Py_ssize_t kBytes = 2 * sizeof(uint64_t);
  return keys != nullptr && PyBytes_Check(state) && PyBytes_GET_SIZE(state) == kBytes &&
         std::memcmp(PyBytes_AS_STRING(state), keys, kBytes) == 0;
}

/// What the call brings along: by positions, or by a function that knows where it is.
py::object picked(PyObject* pick, const py::tuple& args, const py::dict& kwargs) {
  if (!PyTuple_Check(pick))
    return owned(PyObject_CallFunctionObjArgs(pick, args.ptr(), kwargs.ptr(), nullptr));
  const Py_ssize_t count = PyTuple_GET_SIZE(pick);
  py::object values = owned(PyTuple_New(count));
  for (Py_ssize_t i = 0; i < count; ++i) {
    const Py_ssize_t position = PyLong_AsSsize_t(PyTuple_GET_ITEM(pick, i));
    PyObject* value = PyTuple_GetItem(args.ptr(), position);
    if (value == nullptr) throw py::error_already_set();
    Py_INCREF(value);
    PyTuple_SET_ITEM(values.ptr(), i, value);
  }
  return values;
}

/// The result of the first known call that this one is like; NotImplemented where there is none, Ellipsis
/// where the model has changed.
py::object known_call(const py::tuple& known, const py::dict& free, const py::dict& names,
                      const py::tuple& args, const py::dict& kwargs) {
  static PyObject* const args_name = interned("args");
  static PyObject* const kwargs_name = interned("kwargs");
  static PyObject* const entry_name = interned("cache_entry");
  const auto missed = py::reinterpret_borrow<py::object>(Py_NotImplemented);
  if (known.empty() || !is_compiling_as_usual(names)) return missed;
  py::object scope;
  for (const py::handle& each : known) {
    const Fields fields(each);
    if (!is_state(fields.state) || owned(PyObject_GetAttr(fields.wrapper, entry_name)).is_none()) continue;
    if (!scope) {
      scope = owned(PyDict_Copy(free.ptr()));
      if (PyDict_SetItem(scope.ptr(), args_name, args.ptr()) != 0 ||
          PyDict_SetItem(scope.ptr(), kwargs_name, kwargs.ptr()) != 0)
        throw py::error_already_set();
    }
    if (!is_true(owned(PyObject_CallOneArg(fields.check, scope.ptr())))) continue;
    if (fields.are_set != Py_None && !is_true(owned(PyObject_CallOneArg(fields.are_set, scope.ptr()))))
      continue;
    const py::object values = picked(fields.pick, args, kwargs);
    const py::object outputs = owned(PyObject_CallOneArg(fields.run, values.ptr()));
    if (outputs.is_none()) return py::reinterpret_borrow<py::object>(Py_Ellipsis);
    return owned(PyObject_CallOneArg(fields.result, outputs.ptr()));
  }
  return missed;
}

}  // namespace

void bind_known_call(py::module_& m) {
  m.def("known_call", &known_call, py::arg("known"), py::arg("free"), py::arg("names"), py::arg("args"),
        py::arg("kwargs"),
        "The result of a call like one that was made before; NotImplemented where there is none like it, "
        "Ellipsis where the model has changed.");
}

}  // namespace rlopt
