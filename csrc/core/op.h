// The operator table (generated from ops.def) and attribute values.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/type.h"

namespace rlopt {

enum class Op : uint16_t {
#define RLOPT_OP(id, name, ...) name = id,
#include "core/ops.def"
#undef RLOPT_OP
};

inline constexpr int kNumOps = 0
#define RLOPT_OP(...) +1
#include "core/ops.def"
#undef RLOPT_OP
    ;

enum class CostClass : uint8_t {
  Leaf,
  Opaque,
  Elementwise,
  Transcendental,
  Contraction,
  Attention,
  Normalisation,
  Pool,
  Reduction,
  View,
  Movement,
  Host
};

const char* cost_class_name(CostClass cost_class);

/// The rules of shape inference; `Leaf`: the types are declared.
enum class InferRule : uint8_t {
  Leaf,
#define RLOPT_INFER_RULE(name, function) name,
#include "core/infer_rules.def"
#undef RLOPT_INFER_RULE
};

/// Allowed dtypes of the first input.
enum class DTypes : uint8_t {
  Any,
  Known,    // numbers or bool
  Numeric,  // floating, integer or complex
  Ordered,  // floating or integer
  Signed,   // numbers that can be negative
  Float,
  Integer,
  Unsigned,
  Bool
};
bool belongs(DType dtype, DTypes dtypes);
/// For messages: e.g. "a floating dtype".
const char* dtypes_text(DTypes dtypes);

/// Facts about an operator that several parts use; a bit set.
enum OpTraits : uint8_t {
  kNone = 0,
  kCommutative = 1,  // the inputs may be swapped
  kSameBits = 2,     // rounds as IEEE 754 says, on every machine; sums do while they are integers
  kJumps = 4  // the last digit of a real input may decide, e.g. for rounding, comparisons, or near a pole
};

using Ints = std::vector<int64_t>;
using Floats = std::vector<double>;
using AttrValue = std::variant<int64_t, double, std::string, Ints, Floats>;

enum class AttrKind : uint8_t { Int, Float, String, Ints, Floats };  // same order as AttrValue

struct AttrSpec {
  std::string name;
  AttrKind kind;
  bool required;
  AttrValue default_value;  // meaningful when not required
};

struct OpInfo {
  Op op;
  std::string name;
  std::string domain;
  int min_inputs;
  int max_inputs;   // -1: variadic
  int num_outputs;  // -1: depends on attributes
  std::vector<AttrSpec> attrs;
  CostClass cost_class;
  InferRule infer;
  DTypes dtypes;
  int traits;  // OpTraits

  bool is(OpTraits trait) const { return (traits & trait) != 0; }
  const AttrSpec* find_attr(const std::string& attr) const;
};

const OpInfo& op_info(Op op);
/// All operators, by id.
const std::vector<OpInfo>& all_ops();
/// Op::Opaque if unknown.
Op find_op(const std::string& name);
inline bool is_commutative(Op op) { return op_info(op).is(kCommutative); }

/// Attributes of a node: complete (defaults filled in), in schema order. Immutable and shared.
class Attrs {
 public:
  /// Fills in defaults; throws TypeError for an unknown name, a wrong kind or a missing required attribute.
  /// Converts ints to floats, also in lists, where the schema has floats.
  static std::shared_ptr<const Attrs> make(Op op,
                                           const std::vector<std::pair<std::string, AttrValue>>& given);

  const std::vector<AttrValue>& values() const { return values_; }
  const AttrValue& get(const OpInfo& info, const std::string& name) const;
  /// Equal for equal attributes; cached, so that hashing a graph does not read them again.
  uint64_t fingerprint() const { return fingerprint_; }
  bool operator==(const Attrs& other) const {
    return fingerprint_ == other.fingerprint_ && values_ == other.values_;
  }

 private:
  std::vector<AttrValue> values_;
  uint64_t fingerprint_ = 0;
};
using AttrsPtr = std::shared_ptr<const Attrs>;

/// In the syntax of graph text and substitution text.
std::string attr_str(const AttrValue& value);
/// Parses the whole text as a number, whatever the locale; nothing if it is not a number or exceeds 64 bits.
std::optional<int64_t> parse_integer(const std::string& text);
std::optional<double> parse_real(const std::string& text);

/// 64-bit mixing with the same result on every machine (no std::hash).
uint64_t hash_mix(uint64_t seed, uint64_t value);
uint64_t hash_string(const std::string& text);
uint64_t hash_attrs(const Attrs& attrs);
/// Whether 0 and -0 have one hash.
enum class Zeros : uint8_t { Equal, Distinct };
/// Mixes the numbers or the text of a value into a hash, but not its kind.
uint64_t hash_value(uint64_t hash, const AttrValue& value, Zeros zeros);

}  // namespace rlopt
