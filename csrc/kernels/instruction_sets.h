// The sets of kernels, each in a source of its own, and what they are compiled with.
//
// A set is compiled under a target of its own, behind all headers: what is inline in a header must not be
// compiled for a processor that this one may not be.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "kernels/bf16x3.h"
#include "kernels/winograd.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define RLOPT_HAS_KERNELS 1
#else
#define RLOPT_HAS_KERNELS 0
#endif

#if RLOPT_HAS_KERNELS

#include <immintrin.h>

// The first compiler that knows of the matrix unit.
#if __GNUC__ >= 11 && defined(__linux__)
#define RLOPT_HAS_AMX 1
#else
#define RLOPT_HAS_AMX 0
#endif
// The first that knows of a processor whether it has products of bfloat16.
#define RLOPT_HAS_BFLOAT16 (__GNUC__ >= 11)

// In tests the instructions of AVX-512 are functions of this file: on any processor, and seen by sanitizers.
#ifdef RLOPT_AVX512_IN_SOFTWARE
#include RLOPT_AVX512_IN_SOFTWARE
#endif

namespace rlopt::kernels {

template <int kNumber>
using Constant = std::integral_constant<int, kNumber>;

extern const Kernels kAvx2, kAvx512;
#if RLOPT_HAS_AMX
/// The second one without the unit's instructions, for tests.
extern const Kernels kAmx, kAmxInSoftware;
#endif
#if RLOPT_HAS_BFLOAT16
/// The second one for fewer channels than the first has lanes, depthwise convolutions and pools of them.
extern const Kernels kAvx512Bf16, kAvx512Bf16Of8;
#endif

}  // namespace rlopt::kernels

#endif
