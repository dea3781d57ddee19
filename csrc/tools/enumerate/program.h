// Operators on small tensors over the prime field, many renamings of the inputs at once.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "tools/enumerate/world.h"

namespace rlopt {

/// Integers mod 2^31 - 1; element-major, the lanes of an element side by side.
using Lanes = std::vector<uint32_t>;

/// What a letter does to operands of given shapes. Multilinear operators become sums of products that are
/// read off the reference interpreter on unit tensors, so there is one definition of every operator.
struct Program {
  struct Product {
    int32_t a = 0;
    int32_t b = -1;  // -1: no second factor
    uint32_t factor = 1;
  };
  std::vector<Ints> shapes;                    // of the outputs
  std::vector<std::vector<Product>> elements;  // of all outputs, one after another; empty for a function
  bool is_function = false;                    // elementwise, uninterpreted
  bool is_bilinear = false;                    // else the operands' elements are numbered one after another
};

/// Programs by letter and shapes, made on first use.
class Programs {
 public:
  explicit Programs(const World& world) : world_(world) {}
  /// Null where the letter does not apply, or a result would be too large.
  const Program* find(int letter, const std::vector<Ints>& shapes);

 private:
  std::unique_ptr<Program> compile(const Letter& letter, const std::vector<Ints>& shapes) const;

  const World& world_;
  std::map<std::pair<int, std::vector<Ints>>, std::unique_ptr<Program>> programs_;
};

/// Results of all outputs. `ins` as many as the letter has operands.
std::vector<Lanes> run_program(const Program& program, const std::vector<const Lanes*>& ins, int num_lanes);

}  // namespace rlopt
