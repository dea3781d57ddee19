// The module torchrlopt._C: converts, releases the GIL, delegates.
#include "bindings/bind.h"

PYBIND11_MODULE(_C, m) {
  m.doc() = "C++ core of torchrlopt: graphs, substitutions, cost and search.";
  rlopt::translate_errors();
  rlopt::bind_graph(m);
  rlopt::bind_library(m);
  rlopt::bind_cost(m);
  rlopt::bind_memory(m);
  rlopt::bind_tensors(m);
  rlopt::bind_attributes(m);
  rlopt::bind_kernels(m);
  rlopt::bind_sequence(m);
  rlopt::bind_probe(m);
  rlopt::bind_search(m);
  rlopt::bind_env(m);
}
