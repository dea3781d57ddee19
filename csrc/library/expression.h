// Expressions over the variables of a substitution: conditions and attribute values.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "core/text.h"
#include "core/type.h"

namespace rlopt {

/// The value of an expression. `monostate` is "unknown": it propagates through every operation; neither an
/// unknown condition nor its negation holds.
struct Bound;
using BoundList = std::vector<Bound>;
struct Bound {
  std::variant<std::monostate, bool, Dim, double, std::string, Value, BoundList> value;

  bool is_unknown() const { return value.index() == 0; }
  bool operator==(const Bound&) const = default;
};

/// Static types; `Number` is an int or a float, `Scalar` anything except a list or a tensor.
enum class ExprType : uint8_t { Int, Float, Bool, String, List, Tensor, Number, Scalar, Any };
const char* expr_type_name(ExprType type);

enum class BinaryOp : uint8_t {
  Or,
  And,
  Equal,
  NotEqual,
  Less,
  LessEqual,
  Greater,
  GreaterEqual,
  Add,
  Sub,
  Mul,
  Div,
  Mod
};

struct Operator {
  const char* symbol;
  BinaryOp op;
  int precedence;
};
/// In the order of BinaryOp.
inline constexpr Operator kOperators[] = {
    {"||", BinaryOp::Or, 1},       {"&&", BinaryOp::And, 2},          {"==", BinaryOp::Equal, 3},
    {"!=", BinaryOp::NotEqual, 3}, {"<", BinaryOp::Less, 3},          {"<=", BinaryOp::LessEqual, 3},
    {">", BinaryOp::Greater, 3},   {">=", BinaryOp::GreaterEqual, 3}, {"+", BinaryOp::Add, 4},
    {"-", BinaryOp::Sub, 4},       {"*", BinaryOp::Mul, 5},           {"/", BinaryOp::Div, 5},
    {"%", BinaryOp::Mod, 5}};

struct Function;
struct Expr;
using ExprPtr = std::shared_ptr<const Expr>;

/// A parsed expression; immutable once its substitution is parsed.
struct Expr {
  enum class Kind : uint8_t {
    Int,
    Float,
    String,
    List,
    Variable,
    Call,
    Not,
    Negate,
    Binary,
    Index,
    Gather  // list of the operand's values over the family's members; added by the parser, never printed
  };
  Kind kind = Kind::Int;
  ExprType type = ExprType::Any;
  int line = 0;
  int64_t int_value = 0;
  double float_value = 0;
  std::string text;        // string, or name of the variable or function
  bool starred = false;    // Variable: names a family; others: has one value per member
  bool is_tensor = false;  // Variable
  int slot = -1;           // Variable: index in Substitution::tensors or ::attributes
  BinaryOp op = BinaryOp::Or;
  const Function* function = nullptr;
  std::vector<ExprPtr> args;
};

/// Values of a substitution's variables. Slots are those of the substitution; a starred slot has its values
/// in `family_*` (one per member) and, while a member is processed, in the plain arrays too.
struct Binding {
  static constexpr Value kUnbound{-2, 0};

  std::vector<Value> tensors;
  std::vector<const AttrValue*> attributes;  // null: unbound. They belong to nodes of the graph
  std::vector<const Attrs*> rests;           // all attributes of a node; the substitution says which count
  std::vector<std::vector<Value>> family_tensors;
  std::vector<std::vector<const AttrValue*>> family_attributes;

  /// Of a member of the family; of the plain arrays for -1.
  Value& tensor(int slot, int member) {
    return member < 0 ? tensors[at(slot)] : family_tensors[at(slot)][at(member)];
  }
  const AttrValue*& attribute(int slot, int member) {
    return member < 0 ? attributes[at(slot)] : family_attributes[at(slot)][at(member)];
  }
  Value tensor(int slot, int member) const { return const_cast<Binding*>(this)->tensor(slot, member); }
  const AttrValue* attribute(int slot, int member) const {
    return const_cast<Binding*>(this)->attribute(slot, member);
  }
  /// All values of a slot: one for each member if it is starred.
  std::span<const Value> values(int slot, bool is_starred) const {
    return is_starred ? std::span(family_tensors[at(slot)]) : std::span(&tensors[at(slot)], 1);
  }
};

/// Evaluates on a graph. `member` >= 0 takes starred variables from that member of the family, -1 from the
/// plain arrays. Never throws for unsuitable values (index out of range, symbolic instead of a number): the
/// result is unknown.
Bound evaluate(const Expr& expr, const Graph& graph, const Binding& binding, int num_members, int member);

Bound to_bound(const AttrValue& value);
/// The value as an attribute of the given kind; nothing if unknown, symbolic or of another kind.
std::optional<AttrValue> to_attribute(const Bound& value, AttrKind kind);
std::string bound_str(const Bound& value);

/// The number in a Constant node with one element, if the value is one.
std::optional<double> scalar_constant(const Graph& graph, Value value);

std::string print_expression(const Expr& expr);

/// Context in which a call is evaluated.
struct CallContext {
  const Graph& graph;
};

struct Function {
  std::string name;
  std::vector<ExprType> params;
  ExprType result;
  Bound (*call)(const CallContext&, const std::vector<Bound>&);
  bool gathers = false;  // the first argument is always the list over members (num, same)
};

/// Null if there is no such function.
const Function* find_function(const std::string& name);
std::vector<std::string> function_names();
/// Those of tensors, which the others build on.
std::vector<Function> tensor_functions();
/// Position of `index` among `size` entries; negative ones count from the end. Nothing if out of range or
/// symbolic.
std::optional<size_t> list_position(const Bound& index, size_t size);

/// Three-valued comparison of dimensions whose symbols are sizes >= 0: sign of a - b, or nothing if it
/// depends on them.
std::optional<int> compare_dims(const Dim& a, const Dim& b);
std::optional<bool> bounds_equal(const Bound& a, const Bound& b);

/// Equal up to a relative 1e-6: constants and real attributes pass through single precision in ONNX. Infinity
/// equals only itself, and NaN nothing.
bool nearly_equal(double a, double b);
/// Whether a scalar of a graph equals a literal of the library: in half precision it was rounded.
bool is_literal(double number, double literal, DType dtype);
Bound binary(BinaryOp op, const Bound& a, const Bound& b);

}  // namespace rlopt
