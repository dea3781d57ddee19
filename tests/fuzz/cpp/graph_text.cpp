// libFuzzer: the bytes are graph text. It is refused with an error of the core, or gives a sound graph.
#include "examine.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace rlopt;
  Graph graph;
  try {
    graph = parse_graph(std::string(reinterpret_cast<const char*>(data), size));
  } catch (const Error&) {
    return 0;
  }
  fuzz::examine(graph);
  return 0;
}
