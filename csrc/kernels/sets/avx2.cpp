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
#include "kernels/recurrent.inc"
#include "kernels/table.inc"
// clang-format on
}  // namespace avx2
}  // namespace rlopt::kernels
#pragma GCC pop_options

namespace rlopt::kernels {

constinit const Kernels kAvx2 = avx2::table_of("avx2", avx2::recurrent, nullptr);

static_assert(avx2::kVector == kLeastChannels, "a kernel computes a whole vector");

}  // namespace rlopt::kernels

#endif
