// The instructions of AVX-512 that csrc/kernels asks for by name, in plain C++: so that its kernels for
// AVX-512 and bfloat16 run on any processor with AVX2, and a sanitizer sees what they read and write, lane by
// lane. Included by csrc/kernels/instruction_sets.h where RLOPT_AVX512_IN_SOFTWARE is this file.
#pragma once

#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>

// As those who call them: vectors are passed in another way to what is compiled without AVX.
#pragma GCC push_options
#pragma GCC target("avx2,fma")

namespace rlopt_in_software {

typedef float Floats16 __attribute__((vector_size(64)));
typedef float Floats8 __attribute__((vector_size(32)));
typedef int32_t Ints16 __attribute__((vector_size(64)));
typedef uint8_t Bytes64 __attribute__((vector_size(64)));
typedef uint16_t Words32 __attribute__((vector_size(64)));
typedef uint16_t Words16 __attribute__((vector_size(32)));
typedef uint16_t Words8 __attribute__((vector_size(16)));

inline float widened(uint16_t word) {
  const uint32_t bits = static_cast<uint32_t>(word) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

/// To the nearest, the even one of two; NaN stays NaN, and what is smaller than 2^-126 is zero.
inline uint16_t rounded(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  if (value != value) return static_cast<uint16_t>(bits >> 16 | 0x40U);
  if ((bits & 0x7f800000U) == 0) return static_cast<uint16_t>((bits & 0x80000000U) >> 16);
  return static_cast<uint16_t>((bits + 0x7fffU + (bits >> 16 & 1U)) >> 16);
}

template <class To, class From>
inline To cast(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

inline __m512 load_some(unsigned mask, const void* from) {
  Floats16 to{};
  for (int i = 0; i < 16; ++i)
    if ((mask >> i & 1U) != 0) {
      float lane;
      std::memcpy(&lane, static_cast<const char*>(from) + 4 * i, sizeof(lane));
      to[i] = lane;
    }
  return cast<__m512>(to);
}

inline void store_some(void* to, unsigned mask, __m512 value) {
  const auto from = cast<Floats16>(value);
  for (int i = 0; i < 16; ++i)
    if ((mask >> i & 1U) != 0) {
      const float lane = from[i];
      std::memcpy(static_cast<char*>(to) + 4 * i, &lane, sizeof(lane));
    }
}

template <class To, class Words>
inline To load_some_words(unsigned mask, const void* from) {
  Words to{};
  for (unsigned i = 0; i < sizeof(Words) / 2; ++i)
    if ((mask >> i & 1U) != 0) {
      uint16_t word;
      std::memcpy(&word, static_cast<const char*>(from) + 2 * i, sizeof(word));
      to[i] = word;
    }
  return cast<To>(to);
}

inline __m512i words_behind(__m256i first) {
  __m512i to{};
  std::memcpy(&to, &first, sizeof(first));
  return to;
}

/// Where one of two is NaN: the only comparison that is asked for.
inline __mmask16 unordered(__m512 x, __m512 y) {
  unsigned mask = 0;
  for (int i = 0; i < 16; ++i)
    if (x[i] != x[i] || y[i] != y[i]) mask |= 1U << i;
  return static_cast<__mmask16>(mask);
}

inline __m512 chosen(__m512 otherwise, unsigned mask, __m512 value) {
  for (int i = 0; i < 16; ++i)
    if ((mask >> i & 1U) != 0) otherwise[i] = value[i];
  return otherwise;
}

/// The second where they are alike, or one is NaN.
inline __m512 greater(__m512 x, __m512 y) { return x > y ? x : y; }
inline __m512 lesser(__m512 x, __m512 y) { return x < y ? x : y; }

inline __m512i permuted(__m512i places, __m512i from) {
  const auto at = cast<Ints16>(places), lanes = cast<Ints16>(from);
  Ints16 to{};
  for (int i = 0; i < 16; ++i) to[i] = lanes[at[i] & 15];
  return cast<__m512i>(to);
}

inline __m512i permuted_words(__m512i first, __m512i places, __m512i second) {
  const auto at = cast<Words32>(places), x = cast<Words32>(first), y = cast<Words32>(second);
  Words32 to{};
  for (int i = 0; i < 32; ++i) to[i] = (at[i] & 32) != 0 ? y[at[i] & 31] : x[at[i] & 31];
  return cast<__m512i>(to);
}

template <class To, class Words, class Floats>
inline To rounded_lanes(Floats value) {
  Words to{};
  for (unsigned i = 0; i < sizeof(Words) / 2; ++i) to[i] = rounded(value[i]);
  return cast<To>(to);
}

inline __m512bh rounded_two(__m512 high, __m512 low) {
  Words32 to{};
  for (int i = 0; i < 16; ++i) to[i] = rounded(low[i]), to[16 + i] = rounded(high[i]);
  return cast<__m512bh>(to);
}

template <class Words, class Floats, class Pairs>
inline Floats with_products(Floats sum, Pairs x, Pairs y) {
  const auto first = cast<Words>(x), second = cast<Words>(y);
  for (unsigned i = 0; i < sizeof(Floats) / 4; ++i)
    for (unsigned j = 2; j-- > 0;) sum[i] += widened(first[2 * i + j]) * widened(second[2 * i + j]);
  return sum;
}

/// Four bytes without a sign times four with one.
inline __m512i with_four_products(__m512i sums, __m512i x, __m512i y) {
  auto to = cast<Ints16>(sums);
  const auto numbers = cast<Bytes64>(x), weights = cast<Bytes64>(y);
  for (int i = 0; i < 64; ++i) to[i / 4] += numbers[i] * static_cast<int8_t>(weights[i]);
  return cast<__m512i>(to);
}

template <class Vector>
inline Vector loaded(const void* from) {
  Vector to;
  std::memcpy(&to, from, sizeof(to));
  return to;
}

}  // namespace rlopt_in_software

#pragma GCC pop_options

// What the kernels call; the originals are inline functions of other targets.
#define _mm512_maskz_loadu_ps(mask, from) rlopt_in_software::load_some(mask, from)
#define _mm512_mask_storeu_ps(to, mask, value) rlopt_in_software::store_some(to, mask, value)
#undef _mm512_cmp_ps_mask
#define _mm512_cmp_ps_mask(x, y, is_unordered) rlopt_in_software::unordered(x, y)
#define _mm512_mask_mov_ps(otherwise, mask, value) rlopt_in_software::chosen(otherwise, mask, value)
#define _mm512_set1_ps(value) (__m512{} + (value))
#define _mm512_maskz_max_ps(mask, x, y) rlopt_in_software::greater(x, y)
#define _mm512_maskz_min_ps(mask, x, y) rlopt_in_software::lesser(x, y)
#define _mm512_rcp14_ps(value) (1.0F / (value))
#define _mm512_castsi256_si512(value) rlopt_in_software::words_behind(value)
#define _mm512_load_si512(from) rlopt_in_software::loaded<__m512i>(from)
#define _mm512_storeu_si512(to, value) \
  do {                                 \
    const __m512i stored = value;      \
    std::memcpy(to, &stored, 64);      \
  } while (false)
#define _mm512_maskz_permutexvar_epi32(mask, places, from) rlopt_in_software::permuted(places, from)
#define _mm512_permutex2var_epi16(x, places, y) rlopt_in_software::permuted_words(x, places, y)
#define _mm512_cvtneps_pbh(value) \
  rlopt_in_software::rounded_lanes<__m256bh, rlopt_in_software::Words16>(value)
#define _mm256_cvtneps_pbh(value) rlopt_in_software::rounded_lanes<__m128bh, rlopt_in_software::Words8>(value)
#define _mm512_cvtne2ps_pbh(high, low) rlopt_in_software::rounded_two(high, low)
#define _mm512_dpbusd_epi32(sums, x, y) rlopt_in_software::with_four_products(sums, x, y)
#define _mm512_dpbf16_ps(sum, x, y) rlopt_in_software::with_products<rlopt_in_software::Words32>(sum, x, y)
#define _mm256_dpbf16_ps(sum, x, y) rlopt_in_software::with_products<rlopt_in_software::Words16>(sum, x, y)
#define _mm256_maskz_loadu_epi16(mask, from) \
  rlopt_in_software::load_some_words<__m256i, rlopt_in_software::Words16>(mask, from)
#define _mm_maskz_loadu_epi16(mask, from) \
  rlopt_in_software::load_some_words<__m128i, rlopt_in_software::Words8>(mask, from)
