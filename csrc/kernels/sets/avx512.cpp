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
#include "kernels/recurrent.inc"
#include "kernels/attention.inc"
#include "kernels/int8.inc"
#include "kernels/table.inc"
#if RLOPT_HAS_AMX
#include "kernels/amx.inc"
#include "kernels/matrix_unit.inc"
#include "kernels/int8_unit.inc"
#endif
// clang-format on
}  // namespace avx512
}  // namespace rlopt::kernels
#pragma GCC pop_options

namespace rlopt::kernels {

constinit const Kernels kAvx512 =
    avx512::table_of("avx512", avx512::recurrent, avx512::attention, avx512::int8_convolution);
#if RLOPT_HAS_AMX
constinit const Kernels kAmx =
    avx512::table_of("amx", avx512::recurrent, avx512::attention, avx512::int8_convolution,
                     avx512::convolution_in_unit, avx512::int8_in<avx512::Int8InUnit>);
constinit const Kernels kAmxInSoftware =
    avx512::table_of("amx-in-software", avx512::recurrent, avx512::attention, avx512::int8_convolution,
                     avx512::convolution_in_software, avx512::int8_in<avx512::Int8InSoftware>);
#endif

}  // namespace rlopt::kernels

#endif
