// Shared by the binding files of the tools.
#pragma once

#include "bindings/bind.h"

namespace rlopt {

void bind_reference(py::module_& m);
void bind_verify(py::module_& m);

}  // namespace rlopt
