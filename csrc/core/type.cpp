#include "core/type.h"

#include <algorithm>
#include <array>
#include <cctype>

namespace rlopt {

namespace {

struct DTypeInfo {
  const char* name;
  int bytes;
};

// In the order of DType.
constexpr std::array<DTypeInfo, 16> kDTypes{{{"f32", 4},
                                             {"f64", 8},
                                             {"f16", 2},
                                             {"bf16", 2},
                                             {"i8", 1},
                                             {"i16", 2},
                                             {"i32", 4},
                                             {"i64", 8},
                                             {"u8", 1},
                                             {"u16", 2},
                                             {"u32", 4},
                                             {"u64", 8},
                                             {"bool", 1},
                                             {"c64", 8},
                                             {"c128", 16},
                                             {"other", 1}}};

// Sizes in real models take a few dozen characters. Without a limit, steps that square a dimension, or nest
// its names, would exhaust memory in a graph of fifty nodes.
constexpr size_t kMaxLength = 4096;  // of the names in a dimension, plus one character per term

int64_t sum_of(int64_t a, int64_t b) {
  int64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) throw TypeError("dimension overflows 64 bits");
  return sum;
}

int64_t product_of(int64_t a, int64_t b) {
  int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) throw TypeError("dimension overflows 64 bits");
  return product;
}

/// Exact quotient, or nothing. INT64_MIN / -1 overflows.
std::optional<int64_t> exact_quotient(int64_t a, int64_t b) {
  if (b == -1) return product_of(a, -1);
  return a % b == 0 ? std::optional<int64_t>(a / b) : std::nullopt;
}

void require_length(size_t length) {
  if (length > kMaxLength)
    throw TypeError("a dimension of more than " + std::to_string(kMaxLength) + " characters");
}

void add_term(Polynomial& poly, const Monomial& monomial, int64_t coefficient) {
  if (coefficient == 0) return;
  auto [it, inserted] = poly.try_emplace(monomial, coefficient);
  if (!inserted && (it->second = sum_of(it->second, coefficient)) == 0) poly.erase(it);
}

/// Recursive descent over "a*b+2-(c)//(d)": the inverse of Dim::str.
class DimParser {
 public:
  explicit DimParser(const std::string& text) : text_(text) {}

  Dim parse() {
    Dim result = sum();
    skip();
    if (pos_ != text_.size()) fail();
    return result;
  }

 private:
  [[noreturn]] void fail() const {
    throw ParseError("dimension '" + text_ + "': cannot be read at character " + std::to_string(pos_ + 1) +
                     "; expected sums and products of numbers and symbols, such as 2*s0+1");
  }
  void skip() {
    while (pos_ < text_.size() && text_[pos_] == ' ') ++pos_;
  }
  bool take(const std::string& symbol) {
    skip();
    if (text_.compare(pos_, symbol.size(), symbol) != 0) return false;
    pos_ += symbol.size();
    return true;
  }
  Dim sum() {
    Dim left = product();
    while (true) {
      if (take("+")) {
        left = left + product();
      } else if (take("-")) {
        left = left - product();
      } else {
        return left;
      }
    }
  }
  Dim product() {
    Dim left = factor();
    while (true) {
      if (take("//")) {
        left = left.floor_div(factor());
      } else if (take("*")) {
        left = left * factor();
      } else {
        return left;
      }
    }
  }
  Dim factor() {
    skip();
    if (++depth_ > 64) fail();  // a hostile file must not exhaust the stack
    Dim result;
    if (take("(")) {
      result = sum();
      if (!take(")")) fail();
    } else if (take("-")) {
      result = Dim(0) - factor();
    } else if (pos_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[pos_])) != 0) {
      int64_t number = 0;
      while (pos_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[pos_])) != 0) {
        if (__builtin_mul_overflow(number, 10, &number)) fail();
        if (__builtin_add_overflow(number, text_[pos_++] - '0', &number)) fail();
      }
      result = Dim(number);
    } else {
      const size_t start = pos_;
      while (pos_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[pos_])) != 0 ||
                                     text_[pos_] == '_' || text_[pos_] == '.')) {
        ++pos_;
      }
      if (pos_ == start) fail();
      result = Dim::symbol(text_.substr(start, pos_ - start));
    }
    --depth_;
    return result;
  }

  const std::string& text_;
  size_t pos_ = 0;
  int depth_ = 0;
};

}  // namespace

const char* dtype_name(DType dtype) { return kDTypes[at(dtype)].name; }

DType parse_dtype(const std::string& name) {
  for (size_t i = 0; i < kDTypes.size(); ++i) {
    if (name == kDTypes[i].name) return static_cast<DType>(i);
  }
  throw ParseError("unknown dtype '" + name +
                   "'; expected one of f32, f64, f16, bf16, i8 ... u64, bool, c64, c128");
}

int dtype_bytes(DType dtype) { return kDTypes[at(dtype)].bytes; }

bool is_floating(DType dtype) { return dtype <= DType::bf16; }

bool is_integer(DType dtype) { return dtype >= DType::i8 && dtype <= DType::u64; }

Dim Dim::symbol(const std::string& name) { return from_polynomial({{Monomial{name}, 1}}); }

Dim Dim::from_polynomial(Polynomial polynomial) {
  std::erase_if(polynomial, [](const auto& term) { return term.second == 0; });
  if (polynomial.empty()) return Dim(0);
  if (polynomial.size() == 1 && polynomial.begin()->first.empty()) return Dim(polynomial.begin()->second);
  size_t length = polynomial.size();
  for (const auto& [monomial, coefficient] : polynomial) {
    for (const std::string& name : monomial) length += name.size();
  }
  require_length(length);
  Dim dim;
  dim.poly_ = std::make_shared<const Polynomial>(std::move(polynomial));
  return dim;
}

Dim Dim::parse(const std::string& text) { return DimParser(text).parse(); }

int64_t Dim::value() const {
  if (poly_) throw TypeError("dimension " + str() + " is symbolic where a number is needed");
  return value_;
}

Polynomial Dim::polynomial() const {
  if (poly_) return *poly_;
  if (value_ == 0) return {};
  return {{Monomial{}, value_}};
}

std::string Dim::str() const {
  if (!poly_) return std::to_string(value_);
  std::string text;
  // Symbols first, the constant last, as people write it.
  std::vector<std::pair<Monomial, int64_t>> terms(poly_->begin(), poly_->end());
  std::stable_partition(terms.begin(), terms.end(), [](const auto& term) { return !term.first.empty(); });
  for (const auto& [monomial, coefficient] : terms) {
    if (coefficient < 0) {
      text += "-";
    } else if (!text.empty()) {
      text += "+";
    }
    const uint64_t magnitude =
        coefficient < 0 ? 0 - static_cast<uint64_t>(coefficient) : static_cast<uint64_t>(coefficient);
    std::string product = (magnitude == 1 && !monomial.empty()) ? "" : std::to_string(magnitude);
    for (const auto& name : monomial) product += (product.empty() ? "" : "*") + name;
    text += product;
  }
  return text;
}

Dim Dim::operator+(const Dim& other) const {
  if (is_static() && other.is_static()) return sum_of(value_, other.value_);
  Polynomial sum = polynomial();
  for (const auto& [monomial, coefficient] : other.polynomial()) add_term(sum, monomial, coefficient);
  return from_polynomial(std::move(sum));
}

Dim Dim::operator-(const Dim& other) const { return *this + other * Dim(-1); }

Dim Dim::operator*(const Dim& other) const {
  if (is_static() && other.is_static()) return product_of(value_, other.value_);
  const Polynomial terms = polynomial(), others = other.polynomial();
  require_length(terms.size() * others.size());
  Polynomial product;
  for (const auto& [left, a] : terms) {
    for (const auto& [right, b] : others) {
      Monomial merged(left.size() + right.size());
      std::merge(left.begin(), left.end(), right.begin(), right.end(), merged.begin());
      add_term(product, merged, product_of(a, b));
    }
  }
  return from_polynomial(std::move(product));
}

Dim Dim::floor_div(const Dim& other) const {
  if (other == Dim(0)) throw TypeError("dimension " + str() + " divided by zero");
  if (other == Dim(-1)) return *this * other;  // INT64_MIN cannot be negated in 64 bits
  if (is_static() && other.is_static()) {
    const int64_t quotient = value_ / other.value_;
    const bool inexact = value_ % other.value_ != 0 && ((value_ < 0) != (other.value_ < 0));
    return inexact ? quotient - 1 : quotient;
  }
  const Polynomial divisor = other.polynomial();
  if (*this == other) return 1;
  if (divisor.size() == 1) {
    const auto& [monomial, coefficient] = *divisor.begin();
    Polynomial quotient;
    bool exact = true;
    for (const auto& [term, a] : polynomial()) {
      const std::optional<int64_t> factor = exact_quotient(a, coefficient);
      if (!factor || !std::includes(term.begin(), term.end(), monomial.begin(), monomial.end())) {
        exact = false;
        break;
      }
      Monomial rest;
      std::set_difference(term.begin(), term.end(), monomial.begin(), monomial.end(),
                          std::back_inserter(rest));
      add_term(quotient, rest, *factor);
    }
    if (exact) return from_polynomial(std::move(quotient));
  }
  return symbol("(" + str() + ")//(" + other.str() + ")");
}

bool Dim::operator==(const Dim& other) const {
  if (!poly_ || !other.poly_) return !poly_ && !other.poly_ && value_ == other.value_;
  return poly_ == other.poly_ || *poly_ == *other.poly_;
}

bool TensorType::is_static() const {
  return has_rank && std::all_of(dims.begin(), dims.end(), [](const Dim& dim) { return dim.is_static(); });
}

std::string TensorType::str() const {
  std::string text = dtype_name(dtype);
  text += "[";
  if (!has_rank) return text + "?]";
  for (size_t i = 0; i < dims.size(); ++i) text += (i > 0 ? "," : "") + dims[i].str();
  return text + "]";
}

TensorType TensorType::parse(const std::string& text) {
  const size_t open = text.find('[');
  if (open == std::string::npos || text.back() != ']') {
    throw ParseError("tensor type '" + text + "' cannot be read; expected the form f32[1,3,s0]");
  }
  TensorType type;
  type.dtype = parse_dtype(text.substr(0, open));
  const std::string inside = text.substr(open + 1, text.size() - open - 2);
  if (inside == "?") {
    type.has_rank = false;
    return type;
  }
  size_t start = 0;
  while (start < inside.size()) {
    size_t end = inside.find(',', start);
    if (end == std::string::npos) end = inside.size();
    type.dims.push_back(Dim::parse(inside.substr(start, end - start)));
    start = end + 1;
  }
  return type;
}

}  // namespace rlopt
