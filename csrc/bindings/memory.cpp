#include "bindings/memory.h"

#include "bindings/bind.h"

namespace rlopt {

void bind_memory(py::module_& m) {
  py::class_<MemoryWords>(
      m, "MemoryWords", "The 32-bit words at some addresses, which have to be readable whenever it is used.")
      .def(py::init<const std::vector<uint64_t>&>(), py::arg("addresses"))
      .def("is_unchanged", &MemoryWords::is_unchanged, "Whether each word is what it was.");
}

}  // namespace rlopt
