// The module torchrlopt._C: converts, releases the GIL, delegates.
#include "../env.h"
#include "bind.h"

namespace py = pybind11;

PYBIND11_MODULE(_C, m) {
  m.doc() = "C++ core of torchrlopt: graphs, substitutions, cost and search.";
  py::register_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const rlopt::EnvError& error) {
      const py::object type = py::module_::import("torchrlopt.errors").attr("EnvError");
      PyErr_SetObject(type.ptr(), type(std::string(error.what())).ptr());
    } catch (const rlopt::Error& error) {
      const py::object type = py::module_::import("torchrlopt.errors").attr("ModelFormatError");
      PyErr_SetObject(type.ptr(), type(std::string(error.what())).ptr());
    }
  });
  rlopt::bind_graph(m);
  rlopt::bind_reference(m);
  rlopt::bind_substitution(m);
  rlopt::bind_cost(m);
  rlopt::bind_probe(m);
  rlopt::bind_search(m);
  rlopt::bind_env(m);
  rlopt::bind_enumerate(m);
}
