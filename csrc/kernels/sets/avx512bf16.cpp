// The AVX-512 kernels with bfloat16 products, for bfloat16 images.
#include "kernels/instruction_sets.h"

#if RLOPT_HAS_KERNELS

#if RLOPT_HAS_BFLOAT16

#pragma GCC push_options
#ifdef RLOPT_AVX512_IN_SOFTWARE
#pragma GCC target("avx2,fma")
#else
#pragma GCC target("avx512bf16,avx512f,avx512vl,avx512bw,avx512dq,avx2,fma")
#endif
namespace rlopt::kernels {
namespace avx512bf16 {
#define RLOPT_VECTOR 16
#define RLOPT_BFLOAT16 1
// A pair of terms takes a register, whereas a float32 is a memory operand: 7 x 4 sums, 4 weights and a pair
// would need one register more than there are.
#define RLOPT_PIXELS 12, 12, 8, 6
#define RLOPT_UNIT 48
constexpr int64_t kWidestPanel = 4;
// clang-format off: each builds on those before it
#include "kernels/vectors.inc"
#include "kernels/results.inc"
#include "kernels/dense.inc"
#include "kernels/winograd.inc"
#if RLOPT_HAS_AMX
#include "kernels/amx.inc"
#endif
#include "kernels/copied_rows.inc"
#include "kernels/depthwise.inc"
#include "kernels/pool.inc"
#include "kernels/pointwise.inc"
#include "kernels/shuffle.inc"
#include "kernels/attention.inc"
#include "kernels/int8.inc"
#include "kernels/table.inc"
#if RLOPT_HAS_AMX
#include "kernels/matrix_unit.inc"
#include "kernels/int8_unit.inc"
#endif
// clang-format on
}  // namespace avx512bf16
#undef RLOPT_VECTOR
// For fewer channels than the vectors above have lanes.
namespace avx512bf16_of_8 {
#define RLOPT_VECTOR 8
// clang-format off: each builds on those before it
#include "kernels/vectors.inc"
#include "kernels/results.inc"
#include "kernels/depthwise.inc"
#include "kernels/pool.inc"
// clang-format on
}  // namespace avx512bf16_of_8
}  // namespace rlopt::kernels
#pragma GCC pop_options

namespace rlopt::kernels {

namespace {

constexpr Kernels kOf16 =
    avx512bf16::table_of("avx512", nullptr, avx512bf16::attention, avx512bf16::int8_convolution);

constexpr Kernels of_few(Kernels made) {
  made.depthwise = avx512bf16_of_8::depthwise;
  made.pool = avx512bf16_of_8::pool;
  return made;
}
static_assert(avx512bf16_of_8::kVector == kLeastChannels, "a kernel computes a whole vector");

}  // namespace

constinit const Kernels kAvx512Bf16 = kOf16;
constinit const Kernels kAvx512Bf16Of8 = of_few(kOf16);
#if RLOPT_HAS_AMX
namespace {

template <class Unit, class Int8Unit>
constexpr Kernels in_unit(const char* name, decltype(Kernels::in_unit) convolution) {
  Kernels made = kOf16;
  made.name = name;
  made.in_unit = convolution;
  made.int8_in_unit = avx512bf16::int8_in<Int8Unit>;
  made.few_channels = avx512bf16::few_channels_with<Unit>;
  made.attention = avx512bf16::attention_with<Unit>;
  return made;
}

}  // namespace

constinit const Kernels kAmxBf16 =
    in_unit<avx512bf16::UnitProducts, avx512bf16::Int8InUnit>("amx", avx512bf16::convolution_in_unit);
constinit const Kernels kAmxBf16InSoftware =
    in_unit<avx512bf16::SoftwareProducts, avx512bf16::Int8InSoftware>("amx-in-software",
                                                                      avx512bf16::convolution_in_software);
#endif

}  // namespace rlopt::kernels

#endif
#endif
