// Search space of the generator of substitutions: inputs of small fixed shapes, and operators on them.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "core/graph.h"

namespace rlopt {

/// Interchangeable inputs (renaming them gives the same graph), or a constant.
struct InputSort {
  enum class Fill : uint8_t { Data, Number, Identity, Mean };
  std::string name;  // of the first; others get a number appended
  int count = 1;
  std::vector<Ints> shapes;  // one per trial: the first is used to enumerate, the others to test again
  Fill fill = Fill::Data;
  double number = 0;
  bool is_shallow = false;  // only in graphs of at most kShallow operators

  bool is_constant() const { return fill != Fill::Data; }
  /// Values of a constant of this shape: the identity matrix (per group, for a kernel with one tap), or the
  /// averaging kernel.
  Floats values(const Ints& shape) const;
};

/// An operator with its attributes, which may depend on the shapes of its operands ("half of axis 0").
struct Letter {
  enum class Form : uint8_t {
    Plain,          // fixed attributes; not on numbers
    Elementwise,    // operands of one shape, or a tensor and a number
    Half,           // Split in two, or Slice of the first half, along axis `axis`
    Image,          // on images: their sides are even, those of kernels odd
    SameConv,       // an image and a kernel, with pads such that stride 1 keeps the size
    EnlargeKernel,  // Pad of the last two axes to 3
    MergeAxes,      // Reshape that merges axis `axis` and the next
    SplitAxis,      // Reshape that splits a factor of 2 off axis `axis`
  };
  std::string name;
  Op op = Op::Opaque;
  Form form = Form::Plain;
  int64_t axis = 0;
  std::vector<std::pair<std::string, AttrValue>> attrs;
  int arity = 1;
  int num_outputs = 1;
  bool is_shallow = false;  // only in graphs of at most kShallow operators

  /// Nothing if the letter does not apply to operands of these shapes.
  std::optional<std::vector<std::pair<std::string, AttrValue>>> attributes(
      const std::vector<Ints>& shapes) const;
};

/// Numbers and signs combine with everything; larger graphs with them follow from small ones.
inline constexpr int kShallow = 2;

struct World {
  std::string name;
  std::vector<InputSort> sorts;
  std::vector<Letter> letters;
  int num_trials = 1;
  int64_t max_elements = 128;
};

/// By name; throws Error for an unknown one.
const World& find_world(const std::string& name);
std::vector<std::string> world_names();

/// One operator of a term: a letter and its operands.
struct TermOp {
  uint8_t letter = 0;
  std::array<int8_t, 2> ins{-1, -1};
  bool operator==(const TermOp&) const = default;
  auto operator<=>(const TermOp&) const = default;
};

inline constexpr int kMaxTermOps = 4;

/// A small graph. Values are numbered: the inputs of all sorts first, then two for each operator.
struct Term {
  uint64_t fingerprint = 0;
  uint8_t num_ops = 0;
  uint8_t lane = 0;       // the renaming of inputs that gives the fingerprint
  int8_t input = -1;      // term without operators: its value
  bool is_normal = true;  // every part of two or more operators is the first found among its equals
  std::array<TermOp, kMaxTermOps> ops{};
};

/// Numbering of the values of a world.
class ValueNumbers {
 public:
  explicit ValueNumbers(const World& world);
  int num_inputs() const { return static_cast<int>(sort_of_.size()); }
  int sort_of(int input) const { return sort_of_[static_cast<size_t>(input)]; }
  int position(int input) const { return position_[static_cast<size_t>(input)]; }
  std::string name(int input) const { return names_[static_cast<size_t>(input)]; }
  int output(int op, int index) const { return num_inputs() + 2 * op + index; }
  bool is_input(int value) const { return value < num_inputs(); }
  int op_of(int value) const { return (value - num_inputs()) / 2; }
  /// All renamings of inputs within their sorts, the identity first.
  const std::vector<std::vector<int>>& renamings() const { return renamings_; }

 private:
  std::vector<int> sort_of_, position_;
  std::vector<std::string> names_;
  std::vector<std::vector<int>> renamings_;
};

/// Values without readers in the term (its outputs), ascending.
std::vector<int> term_outputs(const World& world, const ValueNumbers& numbers, const Term& term);
Term renamed(const ValueNumbers& numbers, const Term& term, const std::vector<int>& renaming);
/// The operators in the set `ops`, which contains their producers.
Term part_of_term(const World& world, const ValueNumbers& numbers, const Term& term, uint32_t ops);
/// Equal for terms equal up to the order of their operators and of commutative operands.
uint64_t term_hash(const World& world, const ValueNumbers& numbers, const Term& term);
/// The term as a graph that declares all inputs of the world, read or not; `outputs` in that order. `shapes`
/// by sort, `statics` by input (empty: no weights).
Graph term_graph(const World& world, const ValueNumbers& numbers, const Term& term,
                 const std::vector<int>& outputs, const std::vector<Ints>& shapes,
                 const std::vector<bool>& statics = {});
/// Shapes of the sorts in a trial.
std::vector<Ints> trial_shapes(const World& world, int trial);

}  // namespace rlopt
