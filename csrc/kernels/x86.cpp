// Selects the kernels by processor features at run time: those for AVX-512, in float32 and bfloat16, or those
// for AVX2.
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>

#include "kernels/instruction_sets.h"

#if RLOPT_HAS_KERNELS

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace rlopt::kernels {

namespace {

#ifdef RLOPT_AVX512_IN_SOFTWARE
constexpr bool kIsInSoftware = true;
#else
constexpr bool kIsInSoftware = false;
#endif

#if RLOPT_HAS_AMX
/// Whether the processor has the matrix unit and Linux lets this process use it: its register state is large,
/// so a process has to request permission.
bool may_use_amx() {
  constexpr unsigned kAmxBf16 = 1U << 22, kTiles = 1U << 24, kAmxInt8 = 1U << 25;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // NOLINT(google-runtime-int)
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  constexpr unsigned kAll = kAmxBf16 | kTiles | kAmxInt8;
  return (edx & kAll) == kAll && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#endif

/// For a processor with AVX-512.
const Kernels* of_avx512(std::string_view limit) {
#if RLOPT_HAS_AMX
  if (limit == "amx-in-software") return &kAmxInSoftware;
  if (limit != "avx512" && !kIsInSoftware && may_use_amx()) return &kAmx;
#endif
  return &kAvx512;
}

}  // namespace

const Kernels* kernels(Element element) {
  static const Kernels* const chosen = []() -> const Kernels* {
    const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool has_avx512 =
        has_avx2 &&
        (kIsInSoftware || (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq")));
    const std::string_view limit = most_instructions();
    if (limit == "none") return nullptr;
    if (!has_avx512 || limit == "avx2") return has_avx2 ? &kAvx2 : nullptr;
    return of_avx512(limit);
  }();
  if (element == Element::kFloat32) return chosen;
#if RLOPT_HAS_BFLOAT16
  static const bool has_bfloat16 = kIsInSoftware || __builtin_cpu_supports("avx512bf16") != 0;
  if (!has_bfloat16) return nullptr;
#if RLOPT_HAS_AMX
  if (chosen == &kAmx) return &kAmxBf16;
  if (chosen == &kAmxInSoftware) return &kAmxBf16InSoftware;
#endif
  if (chosen == &kAvx512) return &kAvx512Bf16;
#endif
  return nullptr;
}

bool has_int8(Element element) {
  static const bool has_vnni = kIsInSoftware || __builtin_cpu_supports("avx512vnni") != 0;
  return has_vnni && kernels(element) != nullptr && kernels(element)->int8 != nullptr;
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

const Kernels* kernels(Element) {
  most_instructions();
  return nullptr;
}
const Kernels* kernels_of(Element, int64_t) { return nullptr; }
bool has_int8(Element) { return false; }

}  // namespace rlopt::kernels

#endif

namespace rlopt::kernels {

std::string_view most_instructions() {
  const char* const given = std::getenv("TORCHRLOPT_INSTRUCTIONS");  // like ATen's ATEN_CPU_CAPABILITY
  const std::string_view most = given == nullptr ? "" : given;
  // A misspelt limit would silently be ignored.
  for (const std::string_view known : {"", "avx512", "avx2", "none", "amx-in-software"})
    if (most == known) return most;
  throw std::invalid_argument(
      "TORCHRLOPT_INSTRUCTIONS is avx512, avx2, none or amx-in-software, or nothing; got: " +
      std::string(most));
}

}  // namespace rlopt::kernels
