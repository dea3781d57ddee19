// The AVX2 kernels, for float32.
#include "kernels/instruction_sets.h"

#if RLOPT_HAS_KERNELS

#pragma GCC push_options
#pragma GCC target("avx2,fma")
namespace rlopt::kernels {
namespace avx2 {
#define RLOPT_VECTOR 8
#define RLOPT_BFLOAT16 0
#define RLOPT_PIXELS 12, 6
#define RLOPT_UNIT 48
constexpr int64_t kWidestPanel = 2;
// clang-format off: each builds on those before it
#include "kernels/vectors.inc"
#include "kernels/results.inc"
#include "kernels/dense.inc"
#include "kernels/winograd.inc"
#include "kernels/few_channels.inc"
#include "kernels/depthwise.inc"
#include "kernels/pool.inc"
#include "kernels/pointwise.inc"
#include "kernels/shuffle.inc"
// clang-format on
}  // namespace avx2
}  // namespace rlopt::kernels
#pragma GCC pop_options

namespace rlopt::kernels {

constinit const Kernels kAvx2{"avx2",
                              avx2::kVector,
                              avx2::kWidestPanel,
                              avx2::kUnit,
                              avx2::dense,
                              avx2::winograd,
                              nullptr,
                              avx2::few_channels,
                              avx2::few_channels_scratch,
                              avx2::depthwise,
                              avx2::pool,
                              avx2::pointwise,
                              avx2::shuffle,
                              nullptr,
                              avx2::is_finite};

static_assert(avx2::kVector == kLeastChannels, "a kernel computes a whole vector");

}  // namespace rlopt::kernels

#endif
