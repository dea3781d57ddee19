// Proposals: building blocks, elementwise operators, normalisation.
#include "tools/verify/propose.h"

#include <algorithm>
#include <limits>

namespace rlopt {

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

/// A dtype that the operator's first input may have: the usual one if allowed.
DType dtype_for(Op op, DType usual) {
  const DTypes dtypes = op_info(op).dtypes;
  for (const DType each : {usual, DType::f32, DType::boolean, DType::i64, DType::u32}) {
    if (belongs(each, dtypes)) return each;
  }
  return usual;
}

}  // namespace

int64_t Random::between(int64_t low, int64_t high) {
  return low + static_cast<int64_t>(bits() % static_cast<uint64_t>(high - low + 1));
}

Proposer::Proposer(Random& random) : random_(random) {
  for (int i = 0; i < 3; ++i) sizes_.push_back(random_.one_of<int64_t>({1, 2, 3, 3, 5, 7, 8, 2}));
  // Empty tensors break what holds for all others: they occur together, and often enough to be tested.
  has_empty_ = random_.chance(0.06);
  if (has_empty_) sizes_[0] = 0;
}

int64_t Proposer::dim() {
  if (random_.chance(0.7)) return random_.pick(sizes_);
  if (random_.chance(0.03)) return 0;
  return random_.one_of<int64_t>({1, 2, 3, 5, 7, 8});
}

/// Fresh sizes, or those of an earlier tensor with this rank: operands often have to agree.
Ints Proposer::dims(int64_t rank) {
  const auto earlier = last_dims_.find(rank);
  if (earlier != last_dims_.end() && random_.chance(0.4)) return earlier->second;
  Ints result;
  for (int64_t i = 0; i < rank; ++i) {
    result.push_back(i == 0 && rank > 2 && !has_empty_ ? random_.between(1, 3) : dim());
  }
  last_dims_[rank] = result;
  return result;
}

int64_t Proposer::rank_of(const DraftInput& input, int64_t otherwise) const {
  if (input.shape) return static_cast<int64_t>(input.shape->size());
  if (input.hint.shape) return static_cast<int64_t>(input.hint.shape->size());
  return input.hint.rank >= 0 ? input.hint.rank : otherwise;
}

/// Sets the input to the proposal, adjusted to the hints about it.
const Ints& Proposer::choose(DraftInput& input, Ints proposal, std::optional<DType> dtype) {
  if (input.shape) return *input.shape;
  if (dtype) input.dtype = *dtype;
  if (input.hint.dtype) input.dtype = *input.hint.dtype;
  if (input.hint.broadcasts_to && random_.chance(0.8)) proposal = smaller(*input.hint.broadcasts_to);
  if (input.hint.shape) proposal = *input.hint.shape;
  if (input.hint.rank >= 0) {
    const auto rank = static_cast<size_t>(input.hint.rank);
    while (proposal.size() > rank) proposal.erase(proposal.begin());
    while (proposal.size() < rank) proposal.insert(proposal.begin(), dim());
  }
  for (const auto& [index, size] : input.hint.dims) set_dim(proposal, index, size);
  input.shape = std::move(proposal);
  return *input.shape;
}

int64_t Proposer::any_rank(int64_t low) {
  return std::max(low, random_.one_of<int64_t>({0, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4}));
}

int64_t Proposer::axis_for(Draft& draft, const char* name, int64_t rank) {
  if (rank < 1) return 0;
  const int64_t axis = random_.chance(0.4) ? -1 : random_.between(-rank, rank - 1);
  const int64_t chosen = attr<int64_t>(draft, name, axis);
  return chosen < 0 ? chosen + rank : chosen;
}

/// A shape that broadcasts to the target without changing it.
Ints Proposer::smaller(const Ints& target) {
  if (random_.chance(0.35)) return target;
  if (random_.chance(0.15)) return {};
  const auto drop = random_.chance(0.5) ? random_.between(0, static_cast<int64_t>(target.size())) : 0;
  Ints result(target.begin() + drop, target.end());
  if (random_.chance(0.6)) {
    for (auto& size : result) size = random_.chance(0.35) ? 1 : size;
  }
  return result;
}

/// A shape to which `part` broadcasts.
Ints Proposer::larger(const Ints& part) {
  Ints result = part;
  for (auto& size : result) size = size == 1 && random_.chance(0.5) ? dim() : size;
  while (result.size() < 4 && random_.chance(0.3)) result.insert(result.begin(), dim());
  return result;
}

/// A list attribute: the given one, or all of one hinted value, or the previous one with this name, or the
/// proposal.
Ints Proposer::repeated(Draft& draft, const char* name, size_t length, const Ints& proposal) {
  Ints chosen = proposal;
  const auto hint = draft.all_equal.find(name);
  const auto last = last_list_.find(name);
  if (hint != draft.all_equal.end()) {
    chosen = Ints(length, hint->second);
    // For operators an empty list means the default: 0 for pads, 1 for the others.
    const int64_t neutral = std::string(name) == "pads" ? 0 : 1;
    if (hint->second == neutral && random_.chance(0.5)) chosen.clear();
  } else if (last != last_list_.end() && random_.chance(0.55) &&
             (last->second.empty() || last->second.size() == length)) {
    chosen = last->second;
  }
  const Ints& value = attr<Ints>(draft, name, chosen);
  last_list_[name] = value;
  return value;
}

bool Proposer::is_open(const Draft& draft, size_t i) const {
  return i < draft.in.size() && !draft.in[i].is_omitted && !draft.in[i].shape;
}

/// Attributes that no rule below covers.
void Proposer::fill_attributes(Draft& draft) {
  const OpInfo& info = op_info(draft.op);
  for (size_t i = 0; i < info.attrs.size(); ++i) {
    if (draft.attrs[i]) continue;
    const AttrSpec& spec = info.attrs[i];
    if (spec.name == "activation") {
      draft.attrs[i] = random_.one_of<std::string>({"", "", "Relu", "Gelu", "GeluTanh", "Swish", "Sigmoid",
                                                    "Tanh", "HardSwish", "HardSigmoid", "LeakyRelu"});
    } else if (spec.name == "to") {
      draft.attrs[i] = random_.one_of<std::string>({"f32", "f64", "f16", "i64", "i32", "bool"});
    } else if (spec.name == "approximate") {
      draft.attrs[i] = random_.one_of<std::string>({"none", "tanh"});
    } else if (spec.name == "min" || spec.name == "max") {
      const double bound = random_.one_of<double>({0.0, 0.25, 1.0});
      draft.attrs[i] = random_.chance(0.2) ? spec.default_value : (spec.name == "min" ? -bound : 6 * bound);
    } else if (spec.name == "epsilon") {
      draft.attrs[i] = random_.one_of<double>({1e-5, 1e-3, 0.125});
    } else if (spec.name == "upper") {
      draft.attrs[i] = random_.between(0, 1);
    } else if (spec.name == "k") {
      draft.attrs[i] = random_.between(-1, 2);
    } else if (spec.kind == AttrKind::Float && random_.chance(0.7)) {
      draft.attrs[i] = random_.one_of<double>({0.25, 0.5, 1.0, 2.0});
    } else {
      draft.attrs[i] = spec.default_value;
    }
  }
}

bool Proposer::elementwise(Draft& draft) {
  const bool has_axis = op_info(draft.op).find_attr("axis") != nullptr;
  DType dtype = dtype_for(draft.op, DType::f32);
  if (draft.op == Op::Cast)
    dtype = random_.one_of({DType::f32, DType::f32, DType::f64, DType::i64, DType::boolean});
  int64_t low = has_axis ? 1 : 0;
  if (draft.op == Op::Trilu) low = 2;
  const Ints& shape = choose(draft.in[0], dims(rank_of(draft.in[0], any_rank(low))), dtype);
  if (has_axis) axis_for(draft, "axis", static_cast<int64_t>(shape.size()));
  last_shape_ = shape;
  return true;
}

/// Makes operands from `first` on broadcast with each other.
void Proposer::broadcast(Draft& draft, size_t first, DType dtype) {
  Ints joint;
  bool has_joint = false;
  for (size_t i = first; i < draft.in.size(); ++i) {
    if (is_open(draft, i)) continue;
    const Ints& shape = *draft.in[i].shape;
    if (draft.in[i].is_known && !(draft.in[i].dtype == DType::f32 && shape.empty()))
      dtype = draft.in[i].dtype;
    if (!has_joint || shape.size() > joint.size()) joint = shape;
    has_joint = true;
  }
  for (size_t i = first; i < draft.in.size(); ++i) {
    if (!is_open(draft, i)) continue;
    if (!has_joint) {
      Ints base = last_shape_ && random_.chance(0.6) ? *last_shape_ : dims(any_rank(0));
      joint = choose(draft.in[i], random_.chance(0.3) ? smaller(base) : base, dtype);
      has_joint = true;
      continue;
    }
    choose(draft.in[i], random_.chance(0.25) ? larger(joint) : smaller(joint), dtype);
    if (draft.in[i].shape->size() > joint.size()) joint = *draft.in[i].shape;
  }
  last_shape_ = joint;
}

bool Proposer::normalisation(Draft& draft) {
  if (draft.in.size() == 1) return elementwise(draft);
  const bool is_layer = draft.op == Op::LayerNormalization || draft.op == Op::RMSNormalization;
  const int64_t usual = is_layer ? random_.between(1, 4) : random_.one_of<int64_t>({2, 3, 4, 4, 4, 5});
  const int64_t least = draft.op == Op::BatchNormalization ? 2 : (is_layer ? 1 : 3);
  const Ints shape = choose(draft.in[0], dims(rank_of(draft.in[0], std::max(least, usual))));
  const auto rank = static_cast<int64_t>(shape.size());
  Ints rest;
  if (is_layer) {
    const int64_t axis = axis_for(draft, "axis", rank);
    if (axis < 0 || axis >= rank) return false;
    rest.assign(shape.begin() + axis, shape.end());
  } else {
    if (rank < 2) return false;
    rest = {shape[1]};
  }
  for (size_t i = 1; i < draft.in.size(); ++i) {
    if (!draft.in[i].is_omitted) choose(draft.in[i], rest, draft.in[0].dtype);
  }
  if (draft.op == Op::GroupNormalization) {
    attr<int64_t>(draft, "num_groups", shape[1] % 2 == 0 && random_.chance(0.5) ? 2 : 1);
  }
  last_shape_ = shape;
  return true;
}

/// Operators whose operands broadcast with each other; the first of Where is its condition.
bool Proposer::joined(Draft& draft) {
  const InferRule rule = op_info(draft.op).infer;
  if (rule == InferRule::Where) {
    broadcast(draft, 1, DType::f32);
    if (is_open(draft, 0)) choose(draft.in[0], smaller(*last_shape_), DType::boolean);
    return true;
  }
  const bool is_integer = rule == InferRule::Broadcast && random_.chance(0.06) && draft.op != Op::PRelu;
  broadcast(draft, 0, dtype_for(draft.op, is_integer ? DType::i64 : DType::f32));
  return true;
}

bool Proposer::propose(Draft& draft) {
  using P = Proposer;
  using Rule = InferRule;
  static const std::map<Rule, bool (P::*)(Draft&)> proposals{
      {Rule::Unary, &P::elementwise},
      {Rule::Normalisation, &P::normalisation},
      {Rule::Cast, &P::elementwise},
      {Rule::Predicate, &P::elementwise},
      {Rule::Shape, &P::elementwise},
      {Rule::Size, &P::elementwise},
      {Rule::Broadcast, &P::joined},
      {Rule::Compare, &P::joined},
      {Rule::Where, &P::joined},
      {Rule::MatMul, &P::matmul},
      {Rule::Gemm, &P::gemm},
      {Rule::Conv, &P::convolution},
      {Rule::ConvTranspose, &P::transposed_convolution},
      {Rule::Attention, &P::attention},
      {Rule::Pool, &P::pool},
      {Rule::GlobalPool, &P::pool},
      {Rule::Reduce, &P::reduction},
      {Rule::Reshape, &P::reshape},
      {Rule::Flatten, &P::reshape},
      {Rule::Squeeze, &P::squeeze},
      {Rule::Unsqueeze, &P::squeeze},
      {Rule::Transpose, &P::transpose},
      {Rule::Split, &P::split},
      {Rule::Concat, &P::concat},
      {Rule::Slice, &P::slice}};
  const auto proposal = proposals.find(op_info(draft.op).infer);
  const bool fits = proposal == proposals.end() ? movement(draft) : (this->*proposal->second)(draft);
  if (!fits) return false;
  fill_attributes(draft);
  if (draft.op != Op::Clip) return true;
  const double least = *known<double>(draft, "min");
  return least <= *known<double>(draft, "max") && least < kInf;
}

}  // namespace rlopt
