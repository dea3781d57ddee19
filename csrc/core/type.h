// Element types, (possibly symbolic) dimensions and tensor types.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

namespace rlopt {

/// The place of an id, slot, axis or enumerator, which are signed, in a container.
template <class T>
  requires std::is_integral_v<T> || std::is_enum_v<T>
constexpr size_t at(T index) {
  return static_cast<size_t>(index);
}

/// Base class of all errors of the core; bindings translate it into the Python error tree.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Types, shapes or attributes that do not fit an operator.
class TypeError : public Error {
 public:
  using Error::Error;
};

/// An id of something that does not exist (a node, a value, a location): a mistake of the caller.
class IndexError : public Error {
 public:
  using Error::Error;
};

/// Malformed graph or substitution text; the message contains the object, the line and the reason.
class ParseError : public Error {
 public:
  using Error::Error;
};

enum class DType : uint8_t {
  f32,
  f64,
  f16,
  bf16,
  i8,
  i16,
  i32,
  i64,
  u8,
  u16,
  u32,
  u64,
  boolean,
  c64,
  c128,
  other
};

const char* dtype_name(DType dtype);
/// Throws ParseError for an unknown name.
DType parse_dtype(const std::string& name);
/// Bytes per element (`other`: 1).
int dtype_bytes(DType dtype);
bool is_floating(DType dtype);
bool is_integer(DType dtype);

/// 2^53: below it, every integer is exact in a double, and no double is a rounded integer.
inline constexpr double kMaxExactInteger = 9007199254740992;

/// A product of symbols, sorted; the empty one is the constant 1.
using Monomial = std::vector<std::string>;
/// Canonical polynomial with integer coefficients: no zero coefficients, so equality is equality of maps.
using Polynomial = std::map<Monomial, int64_t>;

/// A dimension: a number, or a polynomial over symbols for non-negative sizes. Anything else (an inexact
/// quotient) is a symbol named after its expression.
class Dim {
 public:
  Dim(int64_t value = 0) : value_(value) {}  // NOLINT: a number is a dimension
  /// Like arithmetic, throws TypeError beyond 64 bits, or if the text would take thousands of characters.
  static Dim symbol(const std::string& name);
  static Dim from_polynomial(Polynomial polynomial);
  /// Parses the output of `str`, e.g. "2*s0+1". Throws ParseError.
  static Dim parse(const std::string& text);

  bool is_static() const { return poly_ == nullptr; }
  /// The number; throws TypeError if symbolic.
  int64_t value() const;
  Polynomial polynomial() const;
  std::string str() const;

  Dim operator+(const Dim& other) const;
  Dim operator-(const Dim& other) const;
  Dim operator*(const Dim& other) const;
  /// Exact if divisible by a monomial; otherwise the symbol "(a)//(b)". Throws TypeError on division by 0.
  Dim floor_div(const Dim& other) const;
  /// Equal for all values of the symbols.
  bool operator==(const Dim& other) const;
  bool operator!=(const Dim& other) const { return !(*this == other); }

 private:
  int64_t value_ = 0;
  std::shared_ptr<const Polynomial> poly_;  // null for a number
};

using Dims = std::vector<Dim>;

struct TensorType {
  DType dtype = DType::f32;
  bool has_rank = true;  // only opaque nodes may produce tensors of unknown rank
  Dims dims;

  int rank() const { return static_cast<int>(dims.size()); }
  bool is_static() const;
  bool operator==(const TensorType& other) const = default;
  /// "f32[1,3,s0]"; unknown rank prints as "f32[?]".
  std::string str() const;
  static TensorType parse(const std::string& text);
};

}  // namespace rlopt
