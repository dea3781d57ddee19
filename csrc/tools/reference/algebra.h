// Arithmetics of the reference interpreter: reals, a prime field, and machine integers, with one interface.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "core/op.h"

namespace rlopt {

/// Functions that the field leaves uninterpreted and integers lack; exp is separate, because the field treats
/// it specially.
#define RLOPT_FUNCTIONS(X) \
  X(log)                   \
  X(sqrt)                  \
  X(erf) X(sin) X(cos) X(tan) X(asin) X(acos) X(atan) X(sinh) X(cosh) X(tanh) X(asinh) X(acosh) X(atanh)

/// float64 with the true functions.
struct RealAlgebra {
  using T = double;
  using Accumulator = double;
  static constexpr bool kIsReal = true;

  static T from_double(double value) { return value; }
  static T from_int(int64_t value) { return static_cast<double>(value); }
  static T add(T a, T b) { return a + b; }
  static T sub(T a, T b) { return a - b; }
  static T mul(T a, T b) { return a * b; }
  static T div(T a, T b) { return a / b; }
  static T neg(T a) { return -a; }
  static bool less(T a, T b) { return a < b; }
  static bool is_nan(T a) { return std::isnan(a); }
  static bool is_infinite(T a) { return std::isinf(a); }
  static T lowest() { return -std::numeric_limits<double>::infinity(); }
  static T highest() { return std::numeric_limits<double>::infinity(); }
  static T pow(T a, T b) { return std::pow(a, b); }
  static T mod(T a, T b, bool) { return std::fmod(a, b); }
  static T ceil(T a) { return std::ceil(a); }
  static T floor(T a) { return std::floor(a); }
  static T round(T a) { return std::nearbyint(a); }  // half to even, as in ONNX
  static T exp(T a) { return std::exp(a); }
#define X(name) \
  static T name(T a) { return std::name(a); }
  RLOPT_FUNCTIONS(X)
#undef X

  static void accumulate(Accumulator& sum, T a, T b) { sum += a * b; }
  static T finish(Accumulator sum) { return sum; }
};

/// Integers mod the prime 2^31 - 1, kept in [0, prime). Numbers map into it by a homomorphism: doubles are
/// dyadic rationals, and 2 is invertible. Ordered by the representative of least magnitude, so that relu, max
/// and clip are particular, consistent functions. Anything but a polynomial is a keyed hash of its operand.
struct FieldAlgebra {
  using T = int64_t;
  using Accumulator = uint64_t;
  static constexpr bool kIsReal = false;
  static constexpr int64_t kPrime = 2147483647;
  static constexpr int64_t kInfinity = (kPrime - 1) / 2;  // the largest in the order; -inf is the smallest
  static constexpr int64_t kNan = 1234567891;

  static T reduce(int64_t value) {
    const int64_t rest = value % kPrime;
    return rest < 0 ? rest + kPrime : rest;
  }
  static int64_t signed_value(T a) { return a > kInfinity ? a - kPrime : a; }
  /// mantissa * 2^exponent, exactly: 2^31 = 1 mod the prime, so exponents count mod 31.
  static T from_double(double value) {
    if (std::isnan(value)) return kNan;
    if (std::isinf(value)) return value > 0 ? highest() : lowest();
    int exponent = 0;
    const auto mantissa = static_cast<int64_t>(std::ldexp(std::frexp(value, &exponent), 53));
    const int shift = ((exponent - 53) % 31 + 31) % 31;
    return mul(reduce(mantissa), int64_t{1} << shift);
  }
  static T from_int(int64_t value) { return reduce(value); }
  static T add(T a, T b) {
    const T sum = a + b;
    return sum >= kPrime ? sum - kPrime : sum;
  }
  static T sub(T a, T b) { return a >= b ? a - b : a - b + kPrime; }
  static T mul(T a, T b) {
    // 2^31 = 1 mod the prime: the high half has the same weight as the low one.
    const T product = a * b;
    const T folded = (product & kPrime) + (product >> 31);
    return folded >= kPrime ? folded - kPrime : folded;
  }
  static T neg(T a) { return a == 0 ? 0 : kPrime - a; }
  static T power(T base, int64_t exponent) {
    T result = 1;
    for (; exponent > 0; exponent >>= 1) {
      if ((exponent & 1) != 0) result = mul(result, base);
      base = mul(base, base);
    }
    return result;
  }
  /// The inverse of 0 is 0.
  static T inverse(T a) { return power(a, kPrime - 2); }
  static T div(T a, T b) { return mul(a, inverse(b)); }
  static bool less(T a, T b) { return signed_value(a) < signed_value(b); }
  static bool is_nan(T a) { return a == kNan; }
  static bool is_infinite(T a) { return a == highest() || a == lowest(); }
  static T lowest() { return kPrime - kInfinity; }
  static T highest() { return kInfinity; }

  static constexpr uint64_t key(const char* name) {
    uint64_t hash = 0xcbf29ce484222325ULL;
    for (; *name != 0; ++name) hash = (hash ^ static_cast<unsigned char>(*name)) * 0x100000001b3ULL;
    return hash;
  }
  static T uninterpreted(uint64_t key, T a) {
    return static_cast<T>(hash_mix(key, static_cast<uint64_t>(a)) % static_cast<uint64_t>(kPrime));
  }
  /// Small integer powers and the square root have their usual meaning; other exponents are uninterpreted.
  static T pow(T a, T b) {
    const int64_t exponent = signed_value(b);
    if (exponent >= 0 && exponent <= 64) return power(a, exponent);
    if (exponent < 0 && exponent >= -64) return inverse(power(a, -exponent));
    const T half = from_double(0.5);
    if (b == half) return sqrt(a);
    if (b == neg(half)) return inverse(sqrt(a));
    return uninterpreted(hash_mix(key("pow"), static_cast<uint64_t>(b)), a);
  }
  static T mod(T a, T b, bool) { return uninterpreted(hash_mix(key("mod"), static_cast<uint64_t>(b)), a); }
  static T ceil(T a) { return uninterpreted(key("ceil"), a); }
  static T floor(T a) { return uninterpreted(key("floor"), a); }
  static T round(T a) { return uninterpreted(key("round"), a); }
  static T exp(T a) {
    // Masks add or select -inf, which softmax must turn into 0.
    return a == lowest() ? 0 : uninterpreted(key("exp"), a);
  }
#define X(name) \
  static T name(T a) { return uninterpreted(key(#name), a); }
  RLOPT_FUNCTIONS(X)
#undef X

  static void accumulate(Accumulator& sum, T a, T b) {
    sum += static_cast<uint64_t>(a * b);
    sum = (sum & static_cast<uint64_t>(kPrime)) + (sum >> 31);  // stays below 2^34
  }
  static T finish(Accumulator sum) { return static_cast<T>(sum % static_cast<uint64_t>(kPrime)); }
};

/// Integer tensors: two's complement, 64 bits, wrapping. Division truncates, as in ONNX.
struct IntAlgebra {
  using T = int64_t;
  using Accumulator = uint64_t;
  static constexpr bool kIsReal = false;

  [[noreturn]] static void refuse(const char* what) {
    throw TypeError(std::string("integer arithmetic has no ") + what);
  }
  static T from_double(double value) {
    if (std::isinf(value)) return value > 0 ? highest() : lowest();
    if (value != std::floor(value) || std::fabs(value) >= 9.2e18) refuse("number that is not whole");
    return static_cast<T>(value);
  }
  static T from_int(int64_t value) { return value; }
  static T add(T a, T b) { return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b)); }
  static T sub(T a, T b) { return static_cast<T>(static_cast<uint64_t>(a) - static_cast<uint64_t>(b)); }
  static T mul(T a, T b) { return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b)); }
  static T div(T a, T b) {
    if (b == 0) refuse("division by zero");
    return b == -1 ? neg(a) : a / b;
  }
  static T neg(T a) { return sub(0, a); }
  static bool less(T a, T b) { return a < b; }
  static bool is_nan(T) { return false; }
  static bool is_infinite(T) { return false; }
  static T lowest() { return std::numeric_limits<T>::min(); }
  static T highest() { return std::numeric_limits<T>::max(); }
  static T pow(T a, T b) {
    if (b < 0) refuse("negative powers");
    T result = 1;
    for (; b > 0; b >>= 1) {
      if ((b & 1) != 0) result = mul(result, a);
      a = mul(a, a);
    }
    return result;
  }
  /// With `truncated` (fmod) the sign is the dividend's, otherwise the divisor's.
  static T mod(T a, T b, bool truncated) {
    if (b == 0) refuse("remainder by zero");
    if (b == -1) return 0;
    const T rest = a % b;
    return !truncated && rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
  }
  static T ceil(T a) { return a; }
  static T floor(T a) { return a; }
  static T round(T a) { return a; }
  static T exp(T) { refuse("exp"); }
#define X(name) \
  static T name(T) { refuse(#name); }
  RLOPT_FUNCTIONS(X)
#undef X

  static void accumulate(Accumulator& sum, T a, T b) { sum += static_cast<uint64_t>(mul(a, b)); }
  static T finish(Accumulator sum) { return static_cast<T>(sum); }
};

#undef RLOPT_FUNCTIONS

}  // namespace rlopt
