// The module torchrlopt._tools: checks substitutions; the product does not load it.
#include "tools/bindings/bind.h"

PYBIND11_MODULE(_tools, m) {
  m.doc() = "Reference interpreter and checker of substitutions.";
  rlopt::py::module_::import("torchrlopt._C");  // it uses the types Graph, Library and CostModel
  rlopt::translate_errors();
  rlopt::bind_reference(m);
  rlopt::bind_verify(m);
}
