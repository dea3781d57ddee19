// The kernels of AVX-512, for float32 and bfloat16, and of AVX2, of which the processor chooses when the
// package runs.
//
// Each set is compiled under a target of its own, behind all headers: what is inline in a header must not be
// compiled for a processor that this one may not be.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string_view>
#include <type_traits>

#include "kernels/bf16x3.h"
#include "kernels/winograd.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)

#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

// The first compiler that knows of the matrix unit.
#if __GNUC__ >= 11 && defined(__linux__)
#define RLOPT_HAS_AMX 1
#else
#define RLOPT_HAS_AMX 0
#endif
// The first that knows of a processor whether it has products of bfloat16.
#define RLOPT_HAS_BFLOAT16 (__GNUC__ >= 11)

template <int kNumber>
using Constant = std::integral_constant<int, kNumber>;

#define RLOPT_VECTOR 16
#pragma GCC push_options
#pragma GCC target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma")
namespace rlopt::kernels {
namespace avx512 {
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
#undef RLOPT_BFLOAT16
#undef RLOPT_PIXELS
#undef RLOPT_UNIT
}  // namespace avx512
}  // namespace rlopt::kernels
#pragma GCC pop_options

#if RLOPT_HAS_BFLOAT16
#pragma GCC push_options
#pragma GCC target("avx512bf16,avx512f,avx512vl,avx512bw,avx512dq,avx2,fma")
namespace rlopt::kernels {
namespace avx512bf16 {
#define RLOPT_BFLOAT16 1
// A pair of terms takes a register, where an instruction reads a float32 from memory: 7 x 4 sums, 4 weights
// and a pair would be one more than there are.
#define RLOPT_PIXELS 12, 12, 8, 6
#define RLOPT_UNIT 48
constexpr int64_t kWidestPanel = 4;
// clang-format off: each builds on those before it
#include "kernels/vectors.inc"
#include "kernels/results.inc"
#include "kernels/dense.inc"
#include "kernels/winograd.inc"
#include "kernels/copied_rows.inc"
#include "kernels/depthwise.inc"
#include "kernels/pool.inc"
#include "kernels/pointwise.inc"
#include "kernels/shuffle.inc"
#include "kernels/attention.inc"
// clang-format on
#undef RLOPT_BFLOAT16
#undef RLOPT_PIXELS
#undef RLOPT_UNIT
}  // namespace avx512bf16
#undef RLOPT_VECTOR
// For fewer channels than those have lanes.
namespace avx512bf16_of_8 {
#define RLOPT_VECTOR 8
#define RLOPT_BFLOAT16 1
// clang-format off: each builds on those before it
#include "kernels/vectors.inc"
#include "kernels/results.inc"
#include "kernels/depthwise.inc"
#include "kernels/pool.inc"
// clang-format on
#undef RLOPT_BFLOAT16
}  // namespace avx512bf16_of_8
}  // namespace rlopt::kernels
#pragma GCC pop_options
#endif
#undef RLOPT_VECTOR

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
#undef RLOPT_VECTOR
#undef RLOPT_BFLOAT16
#undef RLOPT_PIXELS
#undef RLOPT_UNIT
}  // namespace avx2
}  // namespace rlopt::kernels
#pragma GCC pop_options

namespace rlopt::kernels {

namespace {

#if RLOPT_HAS_AMX
constexpr auto* kBf16x3InUnit = avx512::bf16x3_in_unit;
constexpr auto* kBf16x3InSoftware = avx512::bf16x3_in_software;

/// Whether the processor has the unit, and Linux lets this process use it: its registers are large, so that
/// they have to be asked for.
bool may_use_amx() {
  constexpr unsigned kAmxBf16 = 1U << 22, kTiles = 1U << 24;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // NOLINT(google-runtime-int)
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  return (edx & kAmxBf16) != 0 && (edx & kTiles) != 0 &&
         syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#else
constexpr void (*kBf16x3InUnit)(const Job&, int, int) = nullptr;
constexpr void (*kBf16x3InSoftware)(const Job&, int, int) = nullptr;
bool may_use_amx() { return false; }
#endif

constexpr Kernels kAvx512{"avx512",          avx512::kVector,      avx512::kWidestPanel,
                          avx512::kUnit,     avx512::dense,        avx512::winograd,
                          nullptr,           avx512::few_channels, avx512::few_channels_scratch,
                          avx512::depthwise, avx512::pool,         avx512::pointwise,
                          avx512::shuffle,   avx512::attention,    avx512::is_finite};
#if RLOPT_HAS_BFLOAT16
constexpr Kernels kAvx512Bf16{"avx512",
                              avx512bf16::kVector,
                              avx512bf16::kWidestPanel,
                              avx512bf16::kUnit,
                              avx512bf16::dense,
                              avx512bf16::winograd,
                              nullptr,
                              avx512bf16::copied_rows,
                              avx512bf16::copied_rows_scratch,
                              avx512bf16::depthwise,
                              avx512bf16::pool,
                              avx512bf16::pointwise,
                              avx512bf16::shuffle,
                              avx512bf16::attention,
                              nullptr};
/// Depthwise convolutions and pools.
constexpr Kernels of_few(Kernels made) {
  made.depthwise = avx512bf16_of_8::depthwise;
  made.pool = avx512bf16_of_8::pool;
  return made;
}
constexpr Kernels kAvx512Bf16Of8 = of_few(kAvx512Bf16);
static_assert(avx512bf16_of_8::kVector == kLeastChannels, "a kernel computes a whole vector");
#endif
constexpr Kernels kAvx2{"avx2",
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

constexpr Kernels with_bf16x3(Kernels made, const char* name, void (*bf16x3)(const Job&, int, int)) {
  made.name = name;
  made.bf16x3 = bf16x3;
  return made;
}
constexpr Kernels kAmx = with_bf16x3(kAvx512, "amx", kBf16x3InUnit);
constexpr Kernels kAmxInSoftware = with_bf16x3(kAvx512, "amx-in-software", kBf16x3InSoftware);

}  // namespace

const Kernels* kernels(Element element) {
  static const Kernels* const chosen = []() -> const Kernels* {
    const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") &&
                            __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") &&
                            __builtin_cpu_supports("avx512dq");
    const char* const most = std::getenv("TORCHRLOPT_INSTRUCTIONS");  // as ATen has ATEN_CPU_CAPABILITY
    const std::string_view limit = most == nullptr ? "" : most;
    if (limit == "none") return nullptr;
    if (!has_avx512 || limit == "avx2") return has_avx2 ? &kAvx2 : nullptr;
    if (limit == "amx-in-software") return &kAmxInSoftware;  // for tests
    return limit != "avx512" && may_use_amx() ? &kAmx : &kAvx512;
  }();
  if (element == Element::kFloat32) return chosen;
#if RLOPT_HAS_BFLOAT16
  static const bool has_bfloat16 = __builtin_cpu_supports("avx512bf16") != 0;
  if (chosen == &kAvx512 && has_bfloat16) return &kAvx512Bf16;
#endif
  return nullptr;
}

const Kernels* kernels_of(Element element, int64_t channels) {
  const Kernels* const found = kernels(element);
  if (found == nullptr || channels >= found->vector_size) return found;
#if RLOPT_HAS_BFLOAT16
  if (element == Element::kBfloat16) return &kAvx512Bf16Of8;
#endif
  return &kAvx2;
}

}  // namespace rlopt::kernels

#else

namespace rlopt::kernels {

const Kernels* kernels(Element) { return nullptr; }
const Kernels* kernels_of(Element, int64_t) { return nullptr; }

}  // namespace rlopt::kernels

#endif
