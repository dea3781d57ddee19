#include "infer/infer.h"

#include <algorithm>

#include "infer/rules.h"

namespace rlopt {

namespace {

// PyTorch and NumPy have no more dims. Inference formats types for each dim, which takes rank * rank.
constexpr int kMaxRank = 64;

Types dispatch(const InferCall& call, InferRule rule) {
  switch (rule) {
#define RLOPT_INFER_RULE(name, function) \
  case InferRule::name:                  \
    return function(call);
#include "core/infer_rules.def"
#undef RLOPT_INFER_RULE
    default:
      call.fail("an operator whose type follows from its inputs", "one whose type is declared");
  }
}

}  // namespace

std::vector<TensorType> infer_types(Op op, const Attrs& attrs, const std::vector<const TensorType*>& inputs) {
  const OpInfo& info = op_info(op);
  const InferCall call(op, attrs, inputs);
  const auto count = static_cast<int>(inputs.size());
  if (count < info.min_inputs || (info.max_inputs >= 0 && count > info.max_inputs)) {
    const std::string most = info.max_inputs < 0 ? "or more" : "to " + std::to_string(info.max_inputs);
    call.fail(std::to_string(info.min_inputs) + " " + most + " inputs", std::to_string(count));
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    // Every member of a variadic list counts as required.
    const bool is_required = static_cast<int>(i) < info.min_inputs || info.max_inputs < 0;
    call.require(inputs[i] != nullptr || !is_required, "input " + std::to_string(i), "an omitted one");
    call.require(inputs[i] == nullptr || inputs[i]->has_rank, "inputs of known rank", "unknown rank");
    call.require(inputs[i] == nullptr || inputs[i]->rank() <= kMaxRank,
                 "inputs of up to " + std::to_string(kMaxRank) + " dims", "more");
  }
  if (call.has(0)) {
    call.require(belongs(call.in(0).dtype, info.dtypes),
                 std::string(dtypes_text(info.dtypes)) + " for input 0", call.in(0).str());
  }
  return dispatch(call, info.infer);
}

NodeId add_inferred(GraphEdit& edit, Op op, AttrsPtr attrs, std::vector<Value> inputs, NodeNames names) {
  std::vector<const TensorType*> types;
  types.reserve(inputs.size());
  for (const Value& value : inputs) types.push_back(value.present() ? &edit.graph().at(value) : nullptr);
  std::vector<TensorType> outputs = infer_types(op, *attrs, types);
  return edit.add_node(op, std::move(attrs), std::move(inputs), std::move(outputs), std::move(names));
}

InferCall::InferCall(Op op, const Attrs& attrs, const std::vector<const TensorType*>& inputs)
    : info_(op_info(op)), attrs_(attrs), inputs_(inputs) {}

bool InferCall::attr_flag(const std::string& name) const {
  const int64_t value = attr_int(name);
  require(value == 0 || value == 1, name + " of 0 or 1", std::to_string(value));
  return value == 1;
}

void InferCall::fail(const std::string& expected, const std::string& got) const {
  throw TypeError(info_.name + ": expected " + expected + ", got " + got);
}

void InferCall::require_floating(size_t i) const {
  require(is_floating(in(i).dtype), "a floating dtype for input " + std::to_string(i), in(i).str());
}

void InferCall::require_numeric(size_t i) const {
  const DType dtype = in(i).dtype;
  require(dtype != DType::boolean && dtype != DType::other, "a numeric dtype for input " + std::to_string(i),
          in(i).str());
}

void InferCall::require_index(size_t i) const {
  const DType dtype = in(i).dtype;
  require(dtype == DType::i32 || dtype == DType::i64, "i32 or i64 for input " + std::to_string(i),
          in(i).str());
}

void InferCall::require_same_dtype(size_t i, size_t j) const {
  require(in(i).dtype == in(j).dtype,
          "one dtype for inputs " + std::to_string(i) + " and " + std::to_string(j),
          in(i).str() + " and " + in(j).str());
}

void InferCall::require_rank(size_t i, int low, int high) const {
  const int rank = in(i).rank();
  if (rank >= low && rank <= high) return;
  const std::string range =
      low == high ? std::to_string(low) : std::to_string(low) + " to " + std::to_string(high);
  fail("rank " + range + " for input " + std::to_string(i), in(i).str());
}

void InferCall::require_dims(size_t i, const Dims& dims) const {
  require(in(i).dims == dims, "shape " + dims_str(dims) + " for input " + std::to_string(i), in(i).str());
}

void InferCall::require_broadcasts_to(size_t i, const Dims& dims) const {
  const Dims& own = in(i).dims;
  bool fits = own.size() <= dims.size();
  for (size_t k = 1; fits && k <= own.size(); ++k) {
    const Dim& dim = own[own.size() - k];
    fits = dim == Dim(1) || dim == dims[dims.size() - k];
  }
  require(fits, "a shape that broadcasts to " + dims_str(dims) + " for input " + std::to_string(i),
          in(i).str());
}

size_t InferCall::axis(int64_t axis, int rank) const {
  require(axis >= -rank && axis < rank, "an axis of a tensor of rank " + std::to_string(rank),
          std::to_string(axis));
  return static_cast<size_t>(axis < 0 ? axis + rank : axis);
}

std::vector<size_t> InferCall::axes(const Ints& axes, int rank) const {
  std::vector<size_t> result;
  for (const int64_t each : axes) {
    const size_t position = axis(each, rank);
    require(std::find(result.begin(), result.end(), position) == result.end(), "distinct axes",
            ints_str(axes));
    result.push_back(position);
  }
  return result;
}

Dims InferCall::broadcast(const Dims& a, const Dims& b) const {
  Dims result(std::max(a.size(), b.size()));
  for (size_t k = 1; k <= result.size(); ++k) {
    const Dim left = k <= a.size() ? a[a.size() - k] : Dim(1);
    const Dim right = k <= b.size() ? b[b.size() - k] : Dim(1);
    const std::optional<Dim> dim = broadcast_dim(left, right);
    require(dim.has_value(), "shapes that broadcast", dims_str(a) + " and " + dims_str(b));
    result[result.size() - k] = *dim;
  }
  return result;
}

std::string dims_str(const Dims& dims) {
  std::string text = "[";
  for (size_t i = 0; i < dims.size(); ++i) {
    if (i > 0) text += ",";
    text += dims[i].str();
  }
  text += "]";
  return text;
}

std::string ints_str(const Ints& ints) {
  // Built for each of n entries, for a possible error: whole texts would take n * n.
  constexpr size_t kMost = 16;
  if (ints.size() <= kMost) return attr_str(AttrValue(ints));
  const Ints first(ints.begin(), ints.begin() + kMost);
  return "the first " + std::to_string(kMost) + " of " + std::to_string(ints.size()) + ": " +
         attr_str(AttrValue(first));
}

std::optional<Dim> broadcast_dim(const Dim& a, const Dim& b) {
  // A symbol may be 1, so a symbol and another dim only broadcast provably if both are the same polynomial.
  if (a == b || b == Dim(1)) return a;
  if (a == Dim(1)) return b;
  return std::nullopt;
}

bool is_at_least(const Dim& dim, int64_t bound) {
  if (dim.is_static()) return dim.value() >= bound;
  int64_t constant = 0;
  for (const auto& [monomial, coefficient] : dim.polynomial()) {
    if (monomial.empty()) {
      constant = coefficient;
    } else if (coefficient < 0) {
      return false;
    }
  }
  return constant >= bound;
}

}  // namespace rlopt
