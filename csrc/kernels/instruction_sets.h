// The sets of kernels, each in its own source file, and their compile targets.
//
// A set is compiled under its target after all headers: inline functions in headers must not be compiled for
// instructions that this processor may lack.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "kernels/int8.h"
#include "kernels/matrix_unit.h"
#include "kernels/openmp.h"
#include "kernels/winograd.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define RLOPT_HAS_KERNELS 1
#else
#define RLOPT_HAS_KERNELS 0
#endif

#if RLOPT_HAS_KERNELS

#include <immintrin.h>

// The first compiler that supports the matrix unit.
#if __GNUC__ >= 11 && defined(__linux__)
#define RLOPT_HAS_AMX 1
#else
#define RLOPT_HAS_AMX 0
#endif
// The first that can detect bfloat16 products at run time.
#define RLOPT_HAS_BFLOAT16 (__GNUC__ >= 11)

// In tests the AVX-512 instructions are functions in this file, so that they run on any processor and
// sanitizers see them.
#ifdef RLOPT_AVX512_IN_SOFTWARE
#include RLOPT_AVX512_IN_SOFTWARE
#endif

namespace rlopt::kernels {

template <int kNumber>
using Constant = std::integral_constant<int, kNumber>;

/// In place of a matrix unit where there is none.
struct NoUnit {
  struct State {
    explicit State(int64_t = 0) {}
  };
};

extern const Kernels kAvx2, kAvx512;
#if RLOPT_HAS_AMX
/// The second emulates the unit's instructions, for tests.
extern const Kernels kAmx, kAmxInSoftware;
#endif
#if RLOPT_HAS_BFLOAT16
/// With and without a matrix unit; the last is for depthwise convolutions and pools with fewer channels than
/// the others have lanes.
extern const Kernels kAvx512Bf16, kAvx512Bf16Of8;
#if RLOPT_HAS_AMX
extern const Kernels kAmxBf16, kAmxBf16InSoftware;
#endif
#endif

}  // namespace rlopt::kernels

#endif
