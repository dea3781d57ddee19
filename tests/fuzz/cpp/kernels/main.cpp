// Random calls of csrc/kernels on memory between pages that nobody may touch, compared with float64.
//
//   kernels SEED CASES [FIRST [float32|bfloat16]]
//
// TORCHRLOPT_INSTRUCTIONS chooses the kernels, as for the package. What ends a case also ends the process: it
// prints the case and the command that repeats it. See the Makefile beside it.
#include <csignal>
#include <iterator>

#include "others.h"
#include "recurrent.h"
#include "sums.h"

namespace rlopt::fuzz {

namespace {

constexpr void (*kKinds[])(Case&) = {dense, few_channels, patches, depthwise, grouped,  tiles,    product,
                                     pool,  pointwise,    shuffle, attention, sequence, recurrent};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: kernels SEED CASES [FIRST [float32|bfloat16]]\n");
    return 2;
  }
  const auto number = [&](int at) { return argc > at ? std::atoll(argv[at]) : 0; };
  const std::string only = argc > 4 ? argv[4] : "";
#ifndef __SANITIZE_ADDRESS__
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) std::signal(signal, end_by_signal);
#else
  (void)&end_by_signal;
  __asan_set_death_callback(report);
#endif
  const char* const limit = std::getenv("TORCHRLOPT_INSTRUCTIONS");
  std::vector<Element> elements;
  if (only != "bfloat16" && kernels::kernels(Element::kFloat32) != nullptr)
    elements.push_back(Element::kFloat32);
  if (only != "float32" && kernels::kernels(Element::kBfloat16) != nullptr)
    elements.push_back(Element::kBfloat16);
  if (elements.empty()) {
    std::printf("no such kernels\n");
    return 5;
  }
  for (int64_t at = number(3); at < number(3) + number(2); ++at) {
    Draw draw(static_cast<uint64_t>(number(1)) * 1000003 + static_cast<uint64_t>(at));
    const Element element = elements[static_cast<size_t>(at) % elements.size()];
    const char* const name = element == Element::kFloat32 ? "float32" : "bfloat16";
    Case given{draw, element, "", static_cast<int>(draw.of({1, 1, 2, 3, 7}))};
    given.repeat = std::string("TORCHRLOPT_INSTRUCTIONS=") + (limit == nullptr ? "" : limit) + " " + argv[0] +
                   " " + argv[1] + " 1 " + std::to_string(at) + " " + name;
    try {
      kKinds[draw.between(0, std::size(kKinds) - 1)](given);
    } catch (const std::exception& error) {
      fail(std::string("threw: ") + error.what());
    }
  }
  std::printf("%s: %lld cases of seed %lld\n", kernels::instructions(), number(2), number(1));
  return 0;
}

}  // namespace rlopt::fuzz

int main(int argc, char** argv) { return rlopt::fuzz::main(argc, argv); }
