// The AVX-512 kernels, for float32, and those of the matrix unit.
#include "kernels/instruction_sets.h"

#if RLOPT_HAS_KERNELS

#pragma GCC push_options
#ifdef RLOPT_AVX512_IN_SOFTWARE
#pragma GCC target("avx2,fma")
#else
#pragma GCC target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma")
#endif
namespace rlopt::kernels {
namespace avx512 {
#define RLOPT_VECTOR 16
#define RLOPT_BFLOAT16 0
#define RLOPT_PIXELS 14, 14, 8, 7
#define RLOPT_UNIT 56
constexpr int64_t kWidestPanel = 4;
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
#include "kernels/attention.inc"
#if RLOPT_HAS_AMX
#include "kernels/amx.inc"
#include "kernels/bf16x3.inc"
#endif
// clang-format on
}  // namespace avx512
}  // namespace rlopt::kernels
#pragma GCC pop_options

namespace rlopt::kernels {

namespace {

constexpr Kernels with_bf16x3(const char* name, void (*bf16x3)(const Job&, int, int)) {
  return {name,
          avx512::kVector,
          avx512::kWidestPanel,
          avx512::kUnit,
          avx512::dense,
          avx512::winograd,
          bf16x3,
          avx512::few_channels,
          avx512::few_channels_scratch,
          avx512::depthwise,
          avx512::pool,
          avx512::pointwise,
          avx512::shuffle,
          avx512::attention,
          avx512::is_finite};
}

}  // namespace

constinit const Kernels kAvx512 = with_bf16x3("avx512", nullptr);
#if RLOPT_HAS_AMX
constinit const Kernels kAmx = with_bf16x3("amx", avx512::bf16x3_in_unit);
constinit const Kernels kAmxInSoftware = with_bf16x3("amx-in-software", avx512::bf16x3_in_software);
#endif

}  // namespace rlopt::kernels

#endif
