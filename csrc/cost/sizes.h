// Numbers for symbolic sizes: the sizes at which a graph is priced if its shapes are not fixed.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "core/graph.h"

namespace rlopt {

/// Value of a symbol without an example.
inline constexpr int64_t kAssumedSize = 16;

/// Example sizes of symbols, and the resulting sizes of dimensions and tensors.
class Sizes {
 public:
  Sizes() = default;
  explicit Sizes(std::map<std::string, int64_t> examples) : examples_(std::move(examples)) {}

  /// At least 1 if symbolic.
  double extent(const Dim& dim) const {
    return dim.is_static() ? static_cast<double>(dim.value()) : symbolic_extent(dim);
  }
  double elements(const TensorType& type) const {
    double count = 1;
    for (const Dim& dim : type.dims) count *= extent(dim);
    return count;
  }
  double bytes(const TensorType& type) const { return elements(type) * dtype_bytes(type.dtype); }

 private:
  double symbolic_extent(const Dim& dim) const;
  /// The value of a quotient symbol, "(a)//(b)", is the quotient of its parts.
  double symbol_value(const std::string& symbol) const;

  std::map<std::string, int64_t> examples_;
};

}  // namespace rlopt
