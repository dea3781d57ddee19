// The kernels of AVX-512 and of AVX2, of which the processor chooses when the package runs.
//
// Each set is compiled under a target of its own, behind all headers: what is inline in a header must not be
// compiled for a processor that this one may not be.
#include <cstdlib>
#include <string_view>

#include "kernels/job.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)

#pragma GCC push_options
#pragma GCC target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma")
namespace rlopt::kernels {
namespace avx512 {
#define RLOPT_VECTOR 16
#define RLOPT_PIXELS 14, 14, 8, 7
#define RLOPT_DENSE_PANELS                                              \
  if (width == 4) dense_panel<7, 4>(job, begin, weight, image, tiles);  \
  if (width == 3) dense_panel<8, 3>(job, begin, weight, image, tiles);  \
  if (width == 2) dense_panel<14, 2>(job, begin, weight, image, tiles); \
  if (width == 1) dense_panel<14, 1>(job, begin, weight, image, tiles);
constexpr int64_t kWidestPanel = 4;
#include "kernels/vectors.h"
// behind it:
#include "kernels/dense.h"
#include "kernels/depthwise.h"
#undef RLOPT_VECTOR
#undef RLOPT_PIXELS
#undef RLOPT_DENSE_PANELS
}  // namespace avx512
}  // namespace rlopt::kernels
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx2,fma")
namespace rlopt::kernels {
namespace avx2 {
#define RLOPT_VECTOR 8
#define RLOPT_PIXELS 12, 6
#define RLOPT_DENSE_PANELS                                             \
  if (width == 2) dense_panel<6, 2>(job, begin, weight, image, tiles); \
  if (width == 1) dense_panel<12, 1>(job, begin, weight, image, tiles);
constexpr int64_t kWidestPanel = 2;
#include "kernels/vectors.h"
// behind it:
#include "kernels/dense.h"
#include "kernels/depthwise.h"
#undef RLOPT_VECTOR
#undef RLOPT_PIXELS
#undef RLOPT_DENSE_PANELS
}  // namespace avx2
}  // namespace rlopt::kernels
#pragma GCC pop_options

namespace rlopt::kernels {

const Kernels* kernels() {
  static constexpr Kernels kAvx512{"avx512", avx512::kVector, avx512::kWidestPanel, avx512::dense,
                                   avx512::depthwise};
  static constexpr Kernels kAvx2{"avx2", avx2::kVector, avx2::kWidestPanel, avx2::dense, avx2::depthwise};
  static const Kernels* const chosen = []() -> const Kernels* {
    const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") &&
                            __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") &&
                            __builtin_cpu_supports("avx512dq");
    const char* const most = std::getenv("TORCHRLOPT_INSTRUCTIONS");  // as ATen has ATEN_CPU_CAPABILITY
    const std::string_view limit = most == nullptr ? "" : most;
    if (limit == "none") return nullptr;
    if (has_avx512 && limit != "avx2") return &kAvx512;
    return has_avx2 ? &kAvx2 : nullptr;
  }();
  return chosen;
}

}  // namespace rlopt::kernels

#else

namespace rlopt::kernels {

const Kernels* kernels() { return nullptr; }

}  // namespace rlopt::kernels

#endif
