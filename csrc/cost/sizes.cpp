#include "cost/sizes.h"

#include <algorithm>
#include <cmath>

namespace rlopt {

double Sizes::symbolic_extent(const Dim& dim) const {
  double value = 0;
  for (const auto& [monomial, coefficient] : dim.polynomial()) {
    double term = static_cast<double>(coefficient);
    for (const std::string& symbol : monomial) term *= symbol_value(symbol);
    value += term;
  }
  return std::max(value, 1.0);
}

double Sizes::symbol_value(const std::string& symbol) const {
  if (const auto found = examples_.find(symbol); found != examples_.end()) {
    return static_cast<double>(found->second);
  }
  int depth = 0;
  for (size_t i = 0; i + 1 < symbol.size(); ++i) {
    depth += symbol[i] == '(' ? 1 : symbol[i] == ')' ? -1 : 0;
    if (depth != 0 || symbol.compare(i, 2, "//") != 0) continue;
    try {
      const double divisor = extent(Dim::parse(symbol.substr(i + 2)));
      return std::floor(extent(Dim::parse(symbol.substr(0, i))) / std::max(divisor, 1.0));
    } catch (const Error&) {
      break;  // not a quotient that we named: a symbol like any other
    }
  }
  return static_cast<double>(kAssumedSize);
}

}  // namespace rlopt
