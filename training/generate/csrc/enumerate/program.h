// Operators on small tensors over the prime field, for many renamings of the inputs at once.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "enumerate/world.h"

namespace rlopt {

/// Integers mod 2^31 - 1; element-major, with the lanes of an element contiguous.
using Lanes = std::vector<uint32_t>;

/// The effect of a letter on operands of given shapes. Multilinear operators become sums of products, derived
/// by running the reference interpreter on unit tensors, so that each operator is defined once.
struct Program {
  struct Product {
    int32_t a = 0;
    int32_t b = -1;  // -1: no second factor
    uint32_t factor = 1;
  };
  std::vector<Ints> shapes;                    // of the outputs
  std::vector<std::vector<Product>> elements;  // of all outputs, concatenated; empty for a function
  bool is_function = false;                    // elementwise, uninterpreted
  bool is_bilinear = false;                    // otherwise the operands' elements are numbered consecutively
};

/// Programs by letter and shapes, built on first use.
class Programs {
 public:
  explicit Programs(const World& world) : world_(world) {}
  /// Null if the letter does not apply, or a result would be too large.
  const Program* find(int letter, const std::vector<Ints>& shapes);

 private:
  std::unique_ptr<Program> compile(const Letter& letter, const std::vector<Ints>& shapes) const;

  const World& world_;
  std::map<std::pair<int, std::vector<Ints>>, std::unique_ptr<Program>> programs_;
};

/// Results of all outputs. `ins` has one entry per operand of the letter.
std::vector<Lanes> run_program(const Program& program, const std::vector<const Lanes*>& ins, int num_lanes);

}  // namespace rlopt
