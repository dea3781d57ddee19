// Shared by the binding files: conversions between Python values and the core's.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <chrono>
#include <cstdio>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "env/env.h"

namespace rlopt {

namespace py = pybind11;

/// Sets torchrlopt.errors.<cls>(what).
inline void set_python_error(const char* cls, const std::string& what) {
  const py::object type = py::module_::import("torchrlopt.errors").attr(cls);
  PyErr_SetObject(type.ptr(), type(what).ptr());
}

[[noreturn]] inline void raise_python(const char* cls, const std::string& what) {
  set_python_error(cls, what);
  throw py::error_already_set();
}

/// Translates the core's exceptions into the Python error tree; each module translates for its own functions.
inline void translate_errors() {
  py::register_local_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const EnvError& error) {
      set_python_error("EnvError", error.what());
    } catch (const IndexError& error) {
      PyErr_SetString(PyExc_IndexError, error.what());
    } catch (const Error& error) {
      set_python_error("ModelFormatError", error.what());
    }
  });
}

inline py::object to_python(const AttrValue& value) {
  return std::visit([](const auto& each) -> py::object { return py::cast(each); }, value);
}

inline AttrValue attr_from_python(const py::handle& value) {
  if (py::isinstance<py::bool_>(value) || py::isinstance<py::int_>(value)) return value.cast<int64_t>();
  if (py::isinstance<py::float_>(value)) return value.cast<double>();
  if (py::isinstance<py::str>(value)) return value.cast<std::string>();
  bool all_ints = true;
  for (const auto& item : value) all_ints = all_ints && py::isinstance<py::int_>(item);
  if (all_ints) return value.cast<Ints>();
  return value.cast<Floats>();
}

inline std::vector<std::pair<std::string, AttrValue>> attrs_from_python(const py::dict& attrs) {
  std::vector<std::pair<std::string, AttrValue>> given;
  for (const auto& [name, value] : attrs)
    given.emplace_back(name.cast<std::string>(), attr_from_python(value));
  return given;
}

/// Index of a substitution by name; KeyError if there is none.
inline int index_of(const Library& library, const std::string& name) {
  const int index = library.find(name);
  if (index < 0) throw py::key_error("no substitution named '" + name + "'");
  return index;
}

/// (substitution name, location) pairs, the stored form of a plan.
inline py::list steps_to_python(const Library& library, const std::vector<Step>& steps) {
  py::list result;
  for (const Step& step : steps) {
    result.append(py::make_tuple(library.substitutions()[at(step.substitution)].name, step.location));
  }
  return result;
}

/// The steps of such pairs; raises the error class `error` for a name that the library does not have.
inline std::vector<Step> steps_from_python(const Library& library, const py::handle& steps,
                                           const char* error) {
  std::vector<Step> result;
  for (const auto& step : steps) {
    const auto [name, location] = step.cast<std::pair<std::string, int>>();
    const int index = library.find(name);
    if (index < 0) raise_python(error, "the library has no substitution '" + name + "'");
    result.push_back({index, location});
  }
  return result;
}

inline std::string hex(uint64_t hash) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash));
  return text;
}

inline py::dict metrics_to_python(const NodeMetrics& metrics) {
  py::dict result;
  result["time_us"] = metrics.time_us;
  result["flops"] = metrics.flops;
  result["bytes"] = metrics.bytes;
  result["launches"] = metrics.launches;
  return result;
}

template <class Call>
auto without_gil(const Call& call) {
  const py::gil_scoped_release release;
  return call();
}

/// Lets Python handle signals at most every 20 ms; true once one raised.
class SignalPoll {
 public:
  bool operator()() {
    const auto now = std::chrono::steady_clock::now();
    if (raised_ || now - last_ < std::chrono::milliseconds(20)) return raised_;
    last_ = now;
    const py::gil_scoped_acquire gil;
    raised_ = PyErr_CheckSignals() != 0;
    return raised_;
  }
  bool raised() const { return raised_; }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
  bool raised_ = false;
};

/// Calls `call(interrupted)` without the GIL; raises what a signal raised meanwhile.
template <class Call>
auto with_signals(const Call& call) {
  SignalPoll poll;
  auto result = without_gil([&] { return call([&poll] { return poll(); }); });
  if (poll.raised()) throw py::error_already_set();
  return result;
}

/// A mutable object that one Python thread uses at a time; the others wait for it without the GIL.
template <class T>
class Exclusive {
 public:
  template <class... Args>
  explicit Exclusive(Args&&... args) : object_(std::forward<Args>(args)...) {}

  /// Calls `use(object)` without the GIL. `use` may take the GIL: nobody holds it while waiting for the
  /// object.
  template <class Use>
  auto operator()(const Use& use) {
    const py::gil_scoped_release release;
    const std::lock_guard lock(mutex_);
    return use(object_);
  }

 private:
  T object_;
  std::mutex mutex_;
};

void bind_graph(py::module_& m);
void bind_library(py::module_& m);
void bind_cost(py::module_& m);
void bind_memory(py::module_& m);
void bind_tensors(py::module_& m);
void bind_attributes(py::module_& m);
void bind_kernels(py::module_& m);
void bind_sequence(py::module_& m);
void bind_probe(py::module_& m);
void bind_search(py::module_& m);
void bind_env(py::module_& m);

}  // namespace rlopt
