// Vectors of RLOPT_VECTOR floats and what is computed with them. Included once for each instruction set,
// inside of a namespace of its own and under its target.

typedef float Vector __attribute__((vector_size(RLOPT_VECTOR * 4)));                        // NOLINT
typedef float Loose __attribute__((vector_size(RLOPT_VECTOR * 4), aligned(4), may_alias));  // NOLINT
typedef int32_t Integers __attribute__((vector_size(RLOPT_VECTOR * 4)));                    // NOLINT

constexpr int64_t kVector = RLOPT_VECTOR;

inline Vector load(const float* from) { return *reinterpret_cast<const Loose*>(from); }
inline void store(float* to, Vector value) { *reinterpret_cast<Loose*>(to) = value; }

#if RLOPT_VECTOR == 16
inline __mmask16 first_lanes(int64_t count) { return static_cast<__mmask16>((1U << count) - 1U); }
/// The first `count` lanes, which are not all.
inline Vector load_some(const float* from, int64_t count) {
  return reinterpret_cast<Vector>(_mm512_maskz_loadu_ps(first_lanes(count), from));
}
inline void store_some(float* to, Vector value, int64_t count) {
  _mm512_mask_storeu_ps(to, first_lanes(count), reinterpret_cast<__m512>(value));
}
#else
constexpr int32_t kLanes[2 * RLOPT_VECTOR] = {-1, -1, -1, -1, -1, -1, -1, -1};
inline __m256i first_lanes(int64_t count) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(kLanes + RLOPT_VECTOR - count));
}
/// The first `count` lanes, which are not all.
inline Vector load_some(const float* from, int64_t count) {
  return reinterpret_cast<Vector>(_mm256_maskload_ps(from, first_lanes(count)));
}
inline void store_some(float* to, Vector value, int64_t count) {
  _mm256_maskstore_ps(to, first_lanes(count), reinterpret_cast<__m256>(value));
}
#endif

/// Numbers stay numbers and NaN stays NaN.
inline Vector at_least(Vector value, float bound) { return value < bound ? Vector{} + bound : value; }
inline Vector at_most(Vector value, float bound) { return value > bound ? Vector{} + bound : value; }

/// e^x to two units in the last place; 0 and infinity where float32 has no other number. Cephes' polynomial.
inline Vector exponential(Vector x) {
  x = at_most(at_least(x, -104.0F), 89.0F);
  // To the nearest integer, by adding a number whose last bit is worth one.
  const Vector shifted = x * 1.44269504088896341F + 12582912.0F;
  const Vector n = shifted - 12582912.0F;
  const Vector r = (x - n * 0.693359375F) - n * -2.12194440e-4F;
  Vector p = r * 1.9875691500e-4F + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * (r * r) + r + 1.0F;
  // 2^n in two factors, as 2^128 is no float32 and 2^-140 has no exponent of its own.
  const Integers whole = __builtin_convertvector(n, Integers);
  const Integers half = whole >> 1;
  const Integers first = (half + 127) << 23, second = (whole - half + 127) << 23;
  Vector low, high;
  __builtin_memcpy(&low, &first, sizeof(low));
  __builtin_memcpy(&high, &second, sizeof(high));
  return p * low * high;
}

inline Vector activate(Vector x, Activation kind, float low, float high) {
  switch (kind) {
    case Activation::kNone:
      return x;
    case Activation::kRelu:
      return at_least(x, 0.0F);
    case Activation::kClamp:
      return at_most(at_least(x, low), high);
    case Activation::kLeakyRelu:
      return x < 0.0F ? x * low : x;
    case Activation::kHardswish:
      return x * at_most(at_least(x + 3.0F, 0.0F), 6.0F) / 6.0F;
    case Activation::kHardsigmoid:
      return at_most(at_least(x + 3.0F, 0.0F), 6.0F) / 6.0F;
    case Activation::kSigmoid:
      return 1.0F / (1.0F + exponential(-x));
    case Activation::kSilu:
      return x / (1.0F + exponential(-x));
  }
  return x;
}
